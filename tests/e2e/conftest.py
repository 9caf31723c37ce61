"""A local cluster for each module, clients of a user and of an administrator, the invariant checker in every test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.objects.write import job_path
from coda_lab.checker import Checker
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import jobs_path, wait_gone


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """8 nodes x 8 GPUs in 2 racks, with all of Coda, one extender; or the module's `SPEC`."""
    spec = getattr(request.module, "SPEC", ClusterSpec(nodes="8x8x48", racks=2, extenders=1))
    async with running_cluster(spec, tell=print) as running:
        yield running


@pytest.fixture
async def user(cluster: LocalCluster) -> AsyncIterator[Client]:
    """An ML user's client."""
    async with cluster.client("user") as client:
        yield client


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[Client]:
    """The administrator's client."""
    async with cluster.client("admin") as client:
        yield client


@pytest.fixture(autouse=True)
async def checked(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """The invariants hold during the whole test; afterwards its jobs are deleted."""
    if "cluster" not in request.fixturenames:
        yield
        return
    cluster: LocalCluster = request.getfixturevalue("cluster")
    async with cluster.client("admin") as client:
        checker = Checker(client)
        async with checker.watching():
            yield
            listing = await client.list_pages(jobs_path())
            jobs = [f"default/{job['metadata']['name']}" for job in listing["items"]]
            for job in jobs:
                await client.delete(job_path(job))
            for job in jobs:
                await wait_gone(client, job_path(job))
        assert [breach.sentence for breach in checker.breaches] == []
