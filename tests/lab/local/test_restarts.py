"""Parts that end are started again, but for those that somebody else ends and starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from coda_lab.local.cluster import LocalCluster
from coda_lab.local.restarts import Restarter


class FakeProcess:
    started_s = 0.0

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ended(self) -> int:
        return await asyncio.shield(self.code)


class FakeCluster:
    """One part, `etcd`; its process ends when the test says so."""

    def __init__(self) -> None:
        self.part_by_name = {"etcd": None}
        self.started = [FakeProcess()]

    def process(self, part: str) -> FakeProcess:
        return self.started[-1]

    def is_running(self, part: str) -> bool:
        return not self.started[-1].code.done()

    def launch(self, part: str) -> None:
        self.started.append(FakeProcess())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.01)


async def test_what_ends_by_itself_is_started_again() -> None:
    cluster = FakeCluster()
    restarter = Restarter(cast(LocalCluster, cluster))
    keeping = asyncio.create_task(restarter.keep_all())
    cluster.started[0].code.set_result(1)
    await until(lambda: len(cluster.started) == 2)
    assert restarter.restarts_by_part == {"etcd": 1}
    keeping.cancel()


async def test_what_is_left_to_somebody_else_is_not_and_is_kept_again_afterwards() -> None:
    cluster = FakeCluster()
    restarter = Restarter(cast(LocalCluster, cluster))
    keeping = asyncio.create_task(restarter.keep_all())
    with restarter.leaving("etcd"):
        cluster.started[0].code.set_result(-9)
        await asyncio.sleep(1.2)  # longer than the restarter's first delay
        assert len(cluster.started) == 1
        cluster.launch("etcd")
    assert restarter.restarts_by_part == {"etcd": 0}
    cluster.started[1].code.set_result(1)
    await until(lambda: len(cluster.started) == 3)
    assert restarter.restarts_by_part == {"etcd": 1}
    keeping.cancel()
