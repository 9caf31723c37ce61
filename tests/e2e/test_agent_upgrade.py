"""Agents are upgraded node by node: one of an earlier commit tunes under today's parts, and is replaced midway."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.write import job_path
from coda_lab.checker import Checker
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import TUNED_WITHIN_S, WINDOW_S, has_measured, limits_of, training, wait_for_tuning
from tests.e2e.earlier import earlier_tree, environ_of
from tests.e2e.jobs import submit, wait_for

pytestmark = pytest.mark.e2e

REPLACED, STAYS = "agent-0", "agent-1"
SPEC = ClusterSpec(
    nodes="2x8x32", racks=1, extenders=1, agents=2, agent_window_s=WINDOW_S, stopped=frozenset({REPLACED, STAYS})
)


@pytest.fixture
async def checked(admin: Client) -> AsyncIterator[Checker]:
    checker = Checker(admin)
    async with checker.watching():
        yield checker


async def test_agents_of_two_commits_tune_under_todays_parts(
    cluster: LocalCluster, user: Client, checked: Checker, tmp_path: Path
) -> None:
    """The policies, planner and operator of today take what the earlier agent writes, and today's agent goes on with
    what the earlier one has measured."""
    earlier = environ_of(earlier_tree(tmp_path, "node_agent", beside=("lab",)))
    for agent in (REPLACED, STAYS):
        await cluster.start(agent, environ=earlier)
    replaced, stays = [
        await submit(user, training(name, cores_needed=cores, node=node))
        for name, cores, node in (("replaced", 6, "node-0000"), ("stays", 7, "node-0001"))
    ]
    item = await wait_for(user, job_path(replaced), has_measured(2), within_s=TUNED_WITHIN_S)
    measured = {step["coresPerReplica"] for step in item["status"]["tuning"]["steps"]}
    await cluster.kill(REPLACED, signal.SIGTERM)
    await cluster.start(REPLACED)
    for job, cores in ((replaced, 6), (stays, 7)):
        tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]
        found = tuned["tuning"]["answer"]["coresPerReplica"]
        assert abs(found - cores) <= 1
        assert (tuned["attempt"], await limits_of(user, job)) == (1, [(str(found), 0)])
    steps = (await user.get(job_path(replaced)))["status"]["tuning"]["steps"]
    assert measured <= {step["coresPerReplica"] for step in steps}
    assert [breach.sentence for breach in checked.breaches] == []
