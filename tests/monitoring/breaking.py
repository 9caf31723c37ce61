"""Breaks what an alert watches, for real, for as long as a block lasts; afterwards it is mended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coda_kube.api.client import Client
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from tests.e2e.jobs import job_json, submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster to break. `number` gives each job a name of its own."""

    cluster: LocalCluster
    user: Client
    admin: Client
    number: Iterator[int] = field(default_factory=itertools.count)
    submitted: list[str] = field(default_factory=list)

    async def submit(self, name: str, **more: object) -> str:
        """A job with another name than all before."""
        job = await submit(self.user, job_json(f"{name}-{next(self.number)}", **more))  # type: ignore[arg-type]
        self.submitted.append(job)
        return job

    async def clear(self) -> None:
        """Delete all its jobs: what waits for the whole cluster would keep others from running."""
        while self.submitted:
            await self.user.delete(job_path(self.submitted.pop()))

    def extenders(self) -> list[str]:
        """All replicas."""
        return [name for name in self.cluster.spec.names if name.startswith("extender-")]

    def pid(self, part: str) -> int:
        """Of its newest process."""
        process = self.cluster.process(part)
        assert process is not None
        return process.id.pid


Breaking = Callable[[Scene], contextlib.AbstractAsyncContextManager[None]]


@asynccontextmanager
async def again_and_again(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """While the block lasts, do this work, over and over."""

    async def endlessly() -> None:
        while True:
            await work()

    task = asyncio.create_task(endlessly())
    try:
        yield
    finally:
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(ended, Exception):  # what breaks has itself broken
            raise ended


def children(pid: int, module: str) -> list[int]:
    """The processes that this one started to run `module`."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and module in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to those that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def extender_pids(scene: Scene) -> list[int]:
    """The processes of all replicas of the extender."""
    return [scene.pid(part) for part in scene.extenders()]


def planners(scene: Scene) -> list[int]:
    """The processes that decide."""
    return [pid for parent in extender_pids(scene) for pid in children(parent, "coda_extender.planner_process")]


@asynccontextmanager
async def no_planner(scene: Scene) -> AsyncIterator[None]:
    async with killed(scene, *scene.extenders()):
        yield


@asynccontextmanager
async def killed(scene: Scene, *parts: str) -> AsyncIterator[None]:
    for part in parts:
        await scene.cluster.kill(part)
    try:
        yield
    finally:
        for part in parts:
            await scene.cluster.start(part)


@asynccontextmanager
async def extenders_killed_in_turn(scene: Scene) -> AsyncIterator[None]:
    """As where the kernel ends whole containers for want of memory: the kubelet starts each again."""
    turns = itertools.cycle(scene.extenders())

    async def kill() -> None:
        part = next(turns)
        await scene.cluster.kill(part)
        await scene.cluster.start(part)
        await asyncio.sleep(20)  # two scrapes

    async with again_and_again(kill):
        yield


@asynccontextmanager
async def planner_process_dies(scene: Scene) -> AsyncIterator[None]:
    """As where the kernel ends it for want of memory. It is missed when there is something to decide."""

    async def kill() -> None:
        send(planners(scene), signal.SIGKILL)
        await scene.submit("decided", run_s=0.1)
        await asyncio.sleep(2)

    async with again_and_again(kill):
        yield


@contextmanager
def history_file(scene: Scene) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(scene.cluster.layout.history, isolation_level=None, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def history_refuses(scene: Scene) -> AsyncIterator[None]:
    """Somebody has put a rule of their own into the database, which refuses every record."""
    with history_file(scene) as connection:
        trigger = "CREATE TRIGGER never BEFORE INSERT ON finished_jobs BEGIN SELECT RAISE(ABORT, 'not welcome'); END"
        connection.execute(trigger)
        try:
            await scene.submit("refused", run_s=0.1)
            yield
        finally:
            connection.execute("DROP TRIGGER never")
