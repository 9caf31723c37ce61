"""A node with make-believe GPUs, jobs on them as a container would start them, and the agent's coordinator beside."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coda.sharing.config import SharingConfig
from coda_agent.sharing import Coordinator, SharedGpu, SharedGpus
from coda_lab.emulators.cuda import GpuFile, TorchRig
from coda_lab.programs.gpu_library import python_folder

SCRIPTS = Path(__file__).resolve().parent / "scripts"
UUID = "GPU-c0da0000-0000-0000-0000-0000000000{:02x}"
POD = "CODA_TEST_POD"
"""Tells the pod of a process here; on a node its cgroup does."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A started script."""

    process: subprocess.Popen[str]

    def result(self, timeout_s: float = 120) -> Any:
        """The last line that it prints, as JSON. It must end well."""
        said, errors = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, errors
        return json.loads(said.splitlines()[-1])


@dataclass(kw_only=True)
class SharedNode:
    """Starts jobs. `library` None: nothing of Coda is in them."""

    rig: TorchRig
    gpus: GpuFile
    library: Path
    socket: Path
    jobs: list[Job] = field(default_factory=list)

    def environment(self, pod: str = "", **more: str) -> dict[str, str]:
        """As a container has it. `pod` "": one that does not share."""
        environ = self.rig.environment(self.gpus, os.environ) | more
        if not pod:
            return environ
        return environ | {
            POD: pod,
            "LD_PRELOAD": str(self.library),
            "CODA_LIBRARY": str(self.library),
            "CODA_PYTHON": str(python_folder()),
            "CODA_SOCKET": str(self.socket),
        }

    def start(self, *words: object, pod: str = "", options: Sequence[str] = (), **more: str) -> Job:
        """Start a script of `scripts` with its arguments."""
        script, *arguments = map(str, words)
        command = [sys.executable, *options, str(SCRIPTS / script), *arguments]
        process = subprocess.Popen(
            command, env=self.environment(pod, **more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        job = Job(process=process)
        self.jobs.append(job)
        return job

    def end(self) -> None:
        """Kill what still runs."""
        for job in self.jobs:
            job.process.kill()
            job.process.communicate()


def pod_of(pid: int) -> str | None:
    """The pod of a process, by its environment."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = [variable.partition(b"=")[2].decode() for variable in variables if variable.startswith(POD.encode() + b"=")]
    return found[0] if found else None


def shared_gpu(memory_bytes: int, *, guaranteed: str | None, opportunistic: Sequence[str], index: int = 0) -> SharedGpu:
    return SharedGpu(
        uuid=UUID.format(index),
        memory_bytes=memory_bytes,
        guaranteed=guaranteed,
        opportunistic=tuple(opportunistic),
        seen_bytes={},
    )


@dataclass(kw_only=True)
class RunningCoordinator:
    """The agent's sharing part in a thread of its own. `gpus` may be changed at any time."""

    shared: SharedGpus
    gpus: tuple[SharedGpu, ...]
    history: list[tuple[str, int, float | None]] = field(default_factory=list)

    def settled(self, key: str) -> tuple[str, int, float | None, int]:
        return self.shared.coordinator.share_of(key)


@contextmanager
def coordinating(
    socket: Path, gpus: Sequence[SharedGpu], *, hold_s: float = 60.0, config: SharingConfig | None = None
) -> Iterator[RunningCoordinator]:
    """Run the coordinator until the block ends."""
    coordinator = Coordinator(config or SharingConfig(), hold_s=hold_s, context_bytes=0)
    shared = SharedGpus(socket, pod_of, time.monotonic, coordinator)
    running = RunningCoordinator(shared=shared, gpus=tuple(gpus))
    ending, began = threading.Event(), threading.Event()

    async def run() -> None:
        shared.start()
        began.set()
        while not ending.is_set():
            shared.decide(running.gpus)
            for gpu in running.gpus:
                phase, share, slower, _ = shared.coordinator.share_of(gpu.guaranteed or gpu.uuid)
                running.history.append((phase, share, slower))
            await asyncio.sleep(0.25)
        shared.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert began.wait(10)
        yield running
    finally:
        ending.set()
        thread.join()


Environment = Mapping[str, str]
