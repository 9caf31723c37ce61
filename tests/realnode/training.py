"""A job in training on the real node, followed from outside: its wishes in the status, its limits in the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.host.processes import python_path
from coda_lab.realnode.configuration import NVML_STATE
from coda_lab.realnode.node import RealNode
from tests.e2e.jobs import pods_of, wait_for_phase
from tests.realnode.scene import PATIENCE_S, devices_of, main_status

GPUS = "gpus"
LOOK_S = 1.0

LOADING = """
import time
used, last, cores, read = time.process_time(), time.monotonic(), 0.0, 0.0
while True:
    now = time.monotonic()
    used, last = used + 0.1 * min(cores, {needed}) * (now - last), now
    if now >= read + 0.5:
        quota, period = open("/sys/fs/cgroup/cpu.max").read().split()
        cores, read = int(quota) / int(period), now
    while time.process_time() < used:
        pass
    time.sleep(0.05)
"""
"""A rank's program. Its CPU use is in proportion to its steps per second, and so to its cores up to what it needs. A
tenth of what real loading takes: the machine is emulated, and while it gets little CPU time itself a rank must not seem
to be held up by its cores. To read a file takes milliseconds there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A pod of the job. `folder`: its container's cgroup."""

    pod: Json
    folder: str
    devices: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Training:
    """A job in training, and what its tuning wished for."""

    node: RealNode
    ranks: tuple[Rank, ...]
    job: str
    cores_needed: int  # by each rank, to keep the GPUs as busy as they get
    wishes: dict[int, int] = field(default_factory=dict)  # cores by sequence

    @classmethod
    async def begun(cls, node: RealNode, user: Client, job: str, *, cores_needed: int) -> Training:
        """The job, once it runs on the node."""
        await wait_for_phase(user, job, "Running", within_s=PATIENCE_S)
        ranks = []
        for pod in await pods_of(user, job):
            folder = await node.container_cgroup(pod["metadata"]["uid"], main_status(pod)["containerID"])
            devices = frozenset(await devices_of(node, pod["metadata"]["name"]))
            ranks.append(Rank(pod=pod, folder=folder, devices=devices))
        return cls(node=node, ranks=tuple(ranks), job=job, cores_needed=cores_needed)

    @property
    def wished(self) -> list[int]:
        """Cores, in the order they were wished for."""
        return [cores for _sequence, cores in sorted(self.wishes.items())]

    def limits(self) -> list[list[str]]:
        """What the kernel's `cpu.max` was, of each rank's container and pod, one after the other."""
        return [json.loads(line) for line in self.node.log(GPUS).read_text().splitlines()]

    def note(self, job: Json) -> None:
        """Remember what its tuning wishes for."""
        wish = (job["status"].get("tuning") or {}).get("wish")
        if wish:
            self.wishes[wish["sequence"]] = wish["coresPerReplica"]

    async def follow(self, user: Client) -> None:
        """Note every wish, without end."""
        while True:
            with contextlib.suppress(Outage):  # of an API server that gets no CPU time
                self.note(await user.get(job_path(self.job)))
            await asyncio.sleep(LOOK_S)


async def idle_gpus(node: RealNode, timeout_s: float) -> None:
    """NVML has the node's GPUs, and nobody uses them."""
    argv = (sys.executable, "-P", "-m", "tests.realnode.feeding", NVML_STATE)
    (await node.run(*argv, environ={"PYTHONPATH": python_path()}, timeout_s=timeout_s)).check()


@contextlib.asynccontextmanager
async def following(training: Training, user: Client) -> AsyncIterator[None]:
    """It trains for the time of a block; what goes wrong with following it is raised at the end."""
    node = training.node
    node.log(GPUS).unlink(missing_ok=True)
    argv = (sys.executable, "-P", "-m", "tests.realnode.feeding", NVML_STATE, str(training.cores_needed))
    ranks = [f"{rank.folder}={','.join(sorted(rank.devices))}" for rank in training.ranks]
    await node.start(GPUS, *argv, *ranks, environ={"PYTHONPATH": python_path()})
    task = asyncio.create_task(training.follow(user))
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await node.kill(GPUS)
