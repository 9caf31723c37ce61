"""A short seeded run of `make fuzz` against the extender as it runs: no 500, and real requests are answered rightly."""

from __future__ import annotations

import pytest

from coda_lab.experiments.fuzz.report import Options
from coda_lab.experiments.fuzz.run import SPEC as SPEC  # the cluster that the fixture brings up
from coda_lab.experiments.fuzz.run import attack
from coda_lab.local.cluster import LocalCluster

pytestmark = pytest.mark.e2e


async def test_nothing_hostile_costs_a_real_request_its_answer(cluster: LocalCluster) -> None:
    outcome = await attack(cluster, Options(count=3000, seed=5, connections=250), tell=print)
    assert outcome.problems() == []
    assert sum(outcome.sender.sent.values()) == 3000
    assert max(outcome.connections_held) > 200
    assert all(seen["calls"] > 0 for seen in outcome.honest_by_part.values())
