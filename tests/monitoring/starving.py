"""Breaks by what a busy or broken machine does to processes: too little CPU, hangs, and ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from coda_kube.objects.names import SCHEDULER
from coda_lab.spec import KUBELETS
from coda_lab.spec import SCHEDULER as KUBE_SCHEDULER
from tests.monitoring.breaking import (
    Scene,
    again_and_again,
    children,
    extender_pids,
    killed,
    planners,
    send,
)

PODS = "/api/v1/namespaces/default/pods"


@asynccontextmanager
async def starved(pids: Callable[[], list[int]], *, runs_s: float, waits_s: float) -> AsyncIterator[None]:
    """As the kernel does under a CPU limit that is too small: the processes run for a moment, and wait for long.

    `runs_s` must be shorter than their work takes on an idle machine. Else they do all of it in one moment, and nothing
    is late."""

    async def slice_of_time() -> None:
        send(pids(), signal.SIGSTOP)
        await asyncio.sleep(waits_s)
        send(pids(), signal.SIGCONT)
        await asyncio.sleep(runs_s)

    try:
        async with again_and_again(slice_of_time):
            yield
    finally:
        send(pids(), signal.SIGCONT)


@asynccontextmanager
async def agent_starves(scene: Scene) -> AsyncIterator[None]:
    async with starved(lambda: [scene.pid("agent-0")], runs_s=0.003, waits_s=1.5):
        yield


@asynccontextmanager
async def agent_stopped(scene: Scene) -> AsyncIterator[None]:
    pids = [scene.pid("agent-0")]
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signal.SIGCONT)


@asynccontextmanager
async def extender_starves(scene: Scene) -> AsyncIterator[None]:
    """While pods of others are scheduled."""

    async def schedule() -> None:
        container = {"name": "main", "image": "any:1", "resources": {"requests": {"cpu": "1m"}}}
        spec = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 0, "containers": [container]}
        notes = {"sim.coda.scheduler/run-seconds": "0.1"}
        name = f"foreign-{next(scene.number)}"
        metadata = {"name": name, "annotations": notes}
        await scene.admin.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        await asyncio.sleep(0.1)
        await scene.admin.delete(f"{PODS}/{name}")

    async with (
        starved(lambda: extender_pids(scene), runs_s=0.001, waits_s=0.2),
        again_and_again(schedule),
        again_and_again(schedule),
    ):
        yield


@asynccontextmanager
async def planner_starves(scene: Scene) -> AsyncIterator[None]:
    """While there is something to decide."""

    async def decide() -> None:
        await scene.submit("decided", run_s=0.1)
        await asyncio.sleep(1)

    async with starved(lambda: planners(scene), runs_s=0.05, waits_s=2.5), again_and_again(decide):
        yield


@asynccontextmanager
async def planner_hangs(scene: Scene) -> AsyncIterator[None]:
    """For longer than a job should wait for its first reason; then it goes on."""

    async def hang() -> None:
        stopped = planners(scene)
        send(stopped, signal.SIGSTOP)
        try:
            for _ in range(5):
                await scene.submit("waits", gpus=8, replicas=4, run_s=None)
            await asyncio.sleep(15)
        finally:
            send(stopped, signal.SIGCONT)
        await asyncio.sleep(3)

    async with again_and_again(hang):
        yield


@asynccontextmanager
async def no_planner_process_lives(scene: Scene) -> AsyncIterator[None]:
    """As where not even the first megabytes of memory are there: each one ends as soon as it begins."""

    async def kill() -> None:
        send(planners(scene), signal.SIGKILL)
        await asyncio.sleep(0.02)

    async with again_and_again(kill):
        await scene.submit("undecided", run_s=0.1)
        yield


@asynccontextmanager
async def driver_hangs(scene: Scene) -> AsyncIterator[None]:
    """Each process that asks NVML hangs, as in the kernel."""

    def drivers() -> list[int]:
        return children(scene.pid("agent-0"), "coda_agent.gpus.driver")

    async def hang() -> None:
        send(drivers(), signal.SIGSTOP)
        await asyncio.sleep(0.05)

    try:
        async with again_and_again(hang):
            yield
    finally:
        send(drivers(), signal.SIGCONT)


@asynccontextmanager
async def nobody_binds(scene: Scene) -> AsyncIterator[None]:
    async with killed(scene, KUBE_SCHEDULER):
        for _ in range(8):
            await scene.submit("unbound", run_s=0.1)
        yield


@asynccontextmanager
async def kubelets_gone(scene: Scene) -> AsyncIterator[None]:
    async with killed(scene, KUBELETS):
        yield


@asynccontextmanager
async def no_operator(scene: Scene) -> AsyncIterator[None]:
    async with killed(scene, "operator-0"):
        yield
