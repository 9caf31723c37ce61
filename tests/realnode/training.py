"""A training pod on the real node, followed from outside: its wishes in the status, its limits in the kernel."""

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
from coda_lab.realnode.node import RealNode

NVML_STATE = "/run/nvml-state"  # in the machine's memory: the library reads it at every call
GPUS = "gpus"
LOOK_S = 1.0


@dataclass(slots=True, kw_only=True)
class Training:
    """One pod in training, and what its tuning wished for. `folder`: its container's cgroup."""

    node: RealNode
    folder: str
    devices: frozenset[str]
    job: str
    cores_needed: int  # to keep its GPUs as busy as they get
    wishes: dict[int, int] = field(default_factory=dict)  # cores by sequence

    @property
    def wished(self) -> list[int]:
        """Cores, in the order they were wished for."""
        return [cores for _sequence, cores in sorted(self.wishes.items())]

    def limits(self) -> list[list[str]]:
        """What the kernel's `cpu.max` was, of the container and of the pod, one after the other."""
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
    argv = (sys.executable, "-P", "-m", "tests.realnode.feeding", NVML_STATE, training.folder)
    needs = (str(training.cores_needed), *sorted(training.devices))
    await node.start(GPUS, *argv, *needs, environ={"PYTHONPATH": python_path()})
    task = asyncio.create_task(training.follow(user))
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await node.kill(GPUS)
