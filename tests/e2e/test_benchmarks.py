"""The benchmarks in small, so that they do not rot: no value is judged, only that each arm did its work."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from api_requests import CODA_USERS, count
from coda_kube.api.client import Client
from first_reason import ask_often
from rig.arms import ARMS, CODA, CODA_OVER_HTTP, PLAIN, Arms, two_armed_cluster
from rig.auditing import AuditedCluster
from throughput import LOADS, pairs
from tls_cost import bind_loads

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

NODES = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arms() -> AsyncIterator[Arms]:
    async with two_armed_cluster(NODES, print, kind=AuditedCluster) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def client(arms: Arms) -> AsyncIterator[Client]:
    async with arms.cluster.client("user") as user:
        yield user


async def test_binds_every_load_in_both_arms_and_says_what_it_cost(arms: Arms, client: Client) -> None:
    found = await pairs(arms, client, ARMS, nodes=NODES, pods=20)
    assert [pair.load for pair in found] == list(LOADS)
    for pair in found:
        assert pair.coda.cpu_s_by_part.keys() - pair.plain.cpu_s_by_part.keys() == {"extender-0", "operator-0"}
        assert min(pair.pods_per_s) > 0


async def test_binds_every_load_without_tls_too(arms: Arms, client: Client) -> None:
    runs = await bind_loads(arms, client, CODA_OVER_HTTP, 20)
    assert runs.keys() == set(LOADS)
    assert all(run.cpu_s_by_part["extender-0"] > 0 for run in runs.values())
    assert "https:" not in arms.cluster.layout.scheduler_config.read_text()


async def test_finds_a_reason_in_both_arms(arms: Arms, client: Client) -> None:
    for arm in ARMS:
        assert len(await ask_often(arms, client, arm, nodes=NODES, waiting=5, asked=3)) == 3


async def test_counts_coda_s_requests_in_its_own_arm_only(arms: Arms, client: Client) -> None:
    with_coda = await count(arms, client, CODA, size=2, jobs=2)
    without = await count(arms, client, PLAIN, size=2, jobs=2)
    assert {request.user for request in with_coda} >= CODA_USERS
    assert not {request.user for request in without} & CODA_USERS
    created = [times for request, times in without.items() if (request.verb, request.resource) == ("create", "pods")]
    assert created == [4]
