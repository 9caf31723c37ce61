"""Alerts fire when what they watch is really broken, on a real Prometheus, and are silent before.

Windows and waits are a thirtieth of the chart's: nobody need wait for half an hour. Thresholds are the chart's. The
invariants are not checked here: some are broken, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import training, wait_until
from tests.e2e.jobs import submit, wait_for_phase
from tests.monitoring import breaking
from tests.monitoring.breaking import Breaking, Scene
from tests.monitoring.expressions import ALERTS
from tests.monitoring.prometheus import Prometheus, in_less_time, parts, prometheus_beside

pytestmark = pytest.mark.e2e

TIMES = 30
SPEC = ClusterSpec(nodes="4x8x32", racks=1, extenders=2, agents=2, agent_window_s=1.0)

BREAKING: dict[str, Breaking] = {
    "CodaPlannerAbsent": breaking.no_planner,
    "CodaHistoryLost": breaking.history_refuses,
    "CodaPlannerProcessLost": breaking.planner_process_dies,
}
WITHIN_S = 150.0


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with running_cluster(SPEC, tell=print) as running:
        yield running


@pytest.fixture
async def prometheus(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[Prometheus]:
    rules = in_less_time(ALERTS.read_text(), TIMES)
    async with prometheus_beside(cluster, tmp_path, interval_s=1, rules=rules) as found:

        async def all_are_up() -> bool:
            return await found.samples("up == 1") == len(parts(cluster))

        await wait_until(all_are_up)
        yield found


@pytest.fixture
async def scene(cluster: LocalCluster) -> AsyncIterator[Scene]:
    async with cluster.client("user") as user, cluster.client("admin") as admin:
        yield Scene(cluster=cluster, user=user, admin=admin)


async def test_an_alert_fires_when_what_it_watches_is_broken(scene: Scene, prometheus: Prometheus) -> None:
    user = scene.user
    running = await submit(user, training("runs", cores_needed=4, node="node-0000"))
    await wait_for_phase(user, running, "Running")
    await asyncio.sleep(2)  # two scrapes
    assert await prometheus.firing() == set()
    for name, broken in BREAKING.items():
        async with broken(scene):
            await wait_until(lambda name=name: fires(prometheus, name), within_s=WITHIN_S)  # type: ignore[misc]


async def fires(prometheus: Prometheus, name: str) -> bool:
    """Whether this alert fires now."""
    return name in await prometheus.firing()
