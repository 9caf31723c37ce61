"""This machine as a node with one shared GPU: jobs started as a container would start them, and who orders them."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coda.sharing.config import SharingConfig
from coda_agent.sharing import Coordinator, SharedGpu, SharedGpus

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # who plays the coordinator is the tests'

from tests.framework.boss import Boss as TestsBoss

GIB, MIB = 2**30, 2**20
POD = "CODA_BENCHMARK_POD"
"""Tells the pod of a process here; on a node its cgroup does."""

SCRIPT = Path(__file__).with_name("job.py")
Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a job printed, and when it was started; times are of the machine's monotonic clock."""

    started_s: float
    began_s: float
    ended_s: tuple[float, ...]
    losses: tuple[float, ...]
    peak: int
    union: float | None = None

    def rate(self, from_s: float, to_s: float) -> float:
        """Mini-batches per second between two of them, within the time; 0: too few."""
        ended = [at for at in self.ended_s if from_s <= at <= to_s]
        return (len(ended) - 1) / (ended[-1] - ended[0]) if len(ended) > 1 else 0.0

    def step_s(self, from_s: float = 0.0, to_s: float = float("inf")) -> float:
        """The median mini-batch within the time; NaN: none."""
        pairs = zip(self.ended_s, self.ended_s[1:], strict=False)
        took = [after - before for before, after in pairs if from_s <= before and after <= to_s]
        return statistics.median(took) if took else float("nan")

    @property
    def settled_s(self) -> float:
        """The median of the second half."""
        return self.step_s(from_s=self.ended_s[len(self.ended_s) // 2]) if self.ended_s else float("nan")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A started script."""

    process: subprocess.Popen[str]
    started_s: float

    def wait_until_running(self) -> None:
        """Until it trains, or has ended."""
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def result(self, timeout_s: float = 120) -> Ran:
        """Wait for its end. Raises RuntimeError with its last words if it fails."""
        said, errors = self.process.communicate(timeout=timeout_s)
        if self.process.returncode:
            raise RuntimeError(errors.strip()[-600:] or f"exit code {self.process.returncode}")
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return Ran(
            started_s=self.started_s,
            began_s=found["began_s"],
            ended_s=tuple(found["ended_s"]),
            losses=tuple(found["losses"]),
            peak=found["peak"],
            union=found.get("union"),
        )


class Node:
    """Starts jobs, and kills what still runs at the end of the block."""

    def __init__(self, framework: Path, folder: Path) -> None:
        self._framework = framework
        self.socket = folder / "agent.sock"
        self._jobs: list[Job] = []

    def start(self, *words: object, pod: str = "", reserve: int = 8 * GIB) -> Job:
        """Start `job.py` with these words. `pod` "": nothing of Coda is in it."""
        library = self._framework / "lib" / "x86_64" / "libcodagpu.so"
        ours = {
            POD: pod,
            "LD_PRELOAD": str(library),
            "CODA_LIBRARY": str(library),
            "CODA_PYTHON": str(self._framework / "python"),
            "CODA_SOCKET": str(self.socket),
            "CODA_HOST_RESERVE": str(reserve),
        }
        started_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, words)],
            env=dict(os.environ) | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | (ours if pod else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        job = Job(process=process, started_s=started_s)
        self._jobs.append(job)
        return job

    def end(self) -> None:
        """Kill what still runs."""
        for job in self._jobs:
            if job.process.poll() is None:
                job.process.kill()
                job.process.communicate()
        self._jobs.clear()


@contextmanager
def node(framework: Path) -> Iterator[Node]:
    """A node with a socket in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        made = Node(framework, Path(folder))
        try:
            yield made
        finally:
            made.end()


class Boss(TestsBoss):
    """A coordinator that an experiment plays by hand, one job at a time."""

    def listen(self, seconds: float) -> list[Message]:
        """All that is said within the time."""
        end_s = time.monotonic() + seconds
        said: list[Message] = []
        while (left_s := end_s - time.monotonic()) > 0:
            said += self.hear(left_s)
        return said

    def obeyed(self, **fields: Any) -> float:
        """Send an order; return the milliseconds until the job said that it is done."""
        number = self.order(**fields)
        return float(self.until(lambda said: said.get("type") == "done" and said.get("id") == number)["ms"])

    def given_back(self, limit: int) -> float:
        """Order a limit; return the milliseconds until the job said that it holds no more on the device."""
        began_s = time.monotonic()
        self.order(device=limit)
        self.until(lambda said: bool(said.get("gpus")) and memory_of(said)[0] <= limit)
        return 1e3 * (time.monotonic() - began_s)

    def steps(self, seconds: float) -> list[float]:
        """The durations of the mini-batches that are told within the time."""
        return [took for said in self.listen(seconds) if said.get("type") == "steps" for took in said["s"]]


def memory_of(said: Message) -> tuple[int, int]:
    """Bytes on the device and on the host in a message."""
    gpus = said.get("gpus", ())
    return sum(int(gpu["device"]) for gpu in gpus), sum(int(gpu["host"]) for gpu in gpus)


def pod_of(pid: int) -> str | None:
    """The pod of a process, by its environment."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((word.partition(b"=")[2].decode() for word in words if word.startswith(POD.encode() + b"=")), None)


@dataclass(kw_only=True)
class Coordinated:
    """The agent's sharing part. The pods may be changed at any time."""

    shared: SharedGpus
    gpu: SharedGpu
    history: list[tuple[float, str, int, float | None]] = field(default_factory=list)

    def shares(self, from_s: float, to_s: float) -> list[int]:
        """The share at each round within the time."""
        return [share for at, _, share, _ in self.history if from_s <= at <= to_s]

    def phases(self) -> list[str]:
        """Each change of phase, with the second since the first round and the share."""
        began_s = self.history[0][0]
        pairs = zip([None, *self.history], self.history, strict=False)
        changes = [now for before, now in pairs if before is None or before[1] != now[1]]
        return [f"{at - began_s:.0f} s {phase} {share}" for at, phase, share, _ in changes]


@contextmanager
def coordinating(
    path: Path, uuid: str, memory_bytes: int, guaranteed: str | None, others: Sequence[str]
) -> Iterator[Coordinated]:
    """Run the agent's coordinator once a second, as the agent does, until the block ends."""
    gpu = SharedGpu(
        uuid=uuid, memory_bytes=memory_bytes, guaranteed=guaranteed, opportunistic=tuple(others), seen_bytes={}
    )
    shared = SharedGpus(path, pod_of, time.monotonic, Coordinator(SharingConfig()))
    running = Coordinated(shared=shared, gpu=gpu)
    ending, began = threading.Event(), threading.Event()

    async def run() -> None:
        shared.start()
        began.set()
        while not ending.is_set():
            now = running.gpu
            shared.decide((now,))
            phase, share, slower, _ = shared.coordinator.share_of(now.guaranteed or now.uuid)
            running.history.append((time.monotonic(), phase, share, slower))
            await asyncio.sleep(1.0)
        shared.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        if not began.wait(10):
            raise RuntimeError("the coordinator did not start")
        yield running
    finally:
        ending.set()
        thread.join()
