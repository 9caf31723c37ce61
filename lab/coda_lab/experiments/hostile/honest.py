"""The honest jobs: when each comes, what it asks for, and a record of how it waited, started and ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coda.errors import Outage
from coda.model import Phase
from coda_kube.api.client import AlreadyExists, Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND
from coda_lab.experiments.hostile.nastiness import HONEST_ROOM, HONEST_TAINT
from coda_lab.experiments.load.plans import NAMESPACE
from coda_lab.experiments.load.watches import JOBS
from coda_lab.kubelets.behaviour import PREFIX

LOAD: Final = 0.3
"""Of the honest nodes' GPUs, over the time in which the jobs come. With more, jobs wait for each other: a second more
for one is then a minute for another, and delays say nothing of what hostile objects do."""
NEVER_FITS: Final = 0.05  # of the jobs: they must be told why, beside everything
_RUN_TIMES: Final = (1.0, 5.0)  # between the shortest and the longest job
_RETRY_S: Final = 0.3
_ENDS: Final = (Phase.SUCCEEDED.value, Phase.FAILED.value)
_STARTED: Final = (Phase.RUNNING.value, *_ENDS)
STEPS: Final = ("stored", Phase.QUEUED.value, Phase.LAUNCHED.value, Phase.STARTING.value, Phase.RUNNING.value)
"""What a job passes on its way to its start, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestJob:
    """One job. `after_s`: when it comes, from the start of its phase."""

    name: str
    after_s: float
    replicas: int
    gpus: int
    run_s: float

    @property
    def never_fits(self) -> bool:
        """True if no node is large enough for one rank."""
        return self.gpus > 8


@dataclass(slots=True, kw_only=True)
class Record:
    """What was seen of one job. Times are seconds of a monotonic clock."""

    asked_s: float | None = None
    started_s: float | None = None
    seen_s: dict[str, float] = field(default_factory=dict)  # step -> when it was seen first
    phase: str = ""
    codes: set[str] = field(default_factory=set)
    said: str = ""
    attempt: int = 1
    failures: int = 0
    disruptions: int = 0

    @property
    def waited_s(self) -> float | None:
        """From its creation to all of its ranks running; None while it has not run."""
        return None if self.asked_s is None or self.started_s is None else self.started_s - self.asked_s

    def steps_s(self) -> dict[str, float]:
        """How long each step took since the one before; steps that were not seen belong to the next one."""
        found: dict[str, float] = {}
        last_s = self.asked_s
        for step in STEPS:
            if last_s is not None and step in self.seen_s:
                found[step] = self.seen_s[step] - last_s
                last_s = self.seen_s[step]
        return found

    @property
    def has_ended(self) -> bool:
        """True once it has succeeded or failed."""
        return self.phase in _ENDS


def honest_jobs(seed: int, *, count: int, gpus: int, over_s: float) -> tuple[HonestJob, ...]:
    """The jobs of a seed, which come over `over_s` seconds and use LOAD of `gpus` GPUs meanwhile."""
    rng = random.Random(f"honest {seed}")
    rough = [_shape(rng, number) for number in range(count)]
    work = sum(replicas * each * run for replicas, each, run in rough if each <= 8)
    stretch_s = over_s * LOAD * gpus / work
    return tuple(
        HonestJob(
            name=f"honest-{number}",
            after_s=round(over_s * number / count, 2),
            replicas=replicas,
            gpus=each,
            run_s=round(run * stretch_s, 1),
        )
        for number, (replicas, each, run) in enumerate(rough)
    )


def _shape(rng: random.Random, number: int) -> tuple[int, int, float]:
    run = rng.uniform(*_RUN_TIMES)
    if number % round(1 / NEVER_FITS) == 3:
        return 1, 16, run
    replicas, gpus = rng.choice(((1, 1), (1, 2), (1, 4), (2, 4), (1, 8), (2, 8), (4, 2), (8, 1)))
    return replicas, gpus, run


def job_json(job: HonestJob, phase: str) -> Json:
    """Its TrainingJob in one of the run's phases."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"{job.name}-{phase}", "namespace": NAMESPACE},
        "spec": {
            "replicas": job.replicas,
            "gpusPerReplica": job.gpus,
            "cpusPerReplica": 2,
            "template": {
                "metadata": {"annotations": {f"{PREFIX}run-seconds": f"{job.run_s:g}"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": dict(HONEST_ROOM),
                    "tolerations": [{"key": HONEST_TAINT, "operator": "Exists"}],
                    "containers": [{"name": "main", "image": "train:1"}],
                },
            },
        },
    }


class Honest:
    """The jobs of one phase: submits them and keeps their records, by the name without the phase."""

    def __init__(self, client: Client, jobs: Sequence[HonestJob], phase: str) -> None:
        self.jobs = jobs
        self.phase = phase
        self.records = {job.name: Record() for job in jobs}
        self.uid_by_job: dict[str, str] = {}
        self._client = client
        self._changed = asyncio.Event()

    async def submit(self) -> None:
        """Submit each job at its time."""
        began_s = time.monotonic()
        for job in self.jobs:
            await asyncio.sleep(max(0.0, began_s + job.after_s - time.monotonic()))
            self.records[job.name].asked_s = time.monotonic()
            await self._create(job)

    async def _create(self, job: HonestJob) -> None:
        while True:
            try:
                await self._client.create(JOBS, job_json(job, self.phase))
            except AlreadyExists:
                return
            except Outage:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        name, _, phase = (new or old or {})["metadata"]["name"].rpartition("-")
        record = self.records.get(name)
        if record is None or new is None or phase != self.phase:
            return
        self.uid_by_job[f"{name}-{phase}"] = new["metadata"]["uid"]
        self._see(record, new.get("status") or {})
        self._changed.set()

    def _see(self, record: Record, status: dict[str, Any]) -> None:
        record.phase = str(status.get("phase") or "")
        for step in ("stored", record.phase):
            record.seen_s.setdefault(step, time.monotonic())
        if record.started_s is None and record.phase in _STARTED:
            record.started_s = time.monotonic()
        pending = status.get("pending") or {}
        if record.phase == Phase.QUEUED.value and pending.get("code"):
            record.codes.add(str(pending["code"]))
            record.said = str(pending.get("message") or "")
        record.attempt = int(status.get("attempt") or 1)
        record.failures = int(status.get("failures") or 0)
        record.disruptions = int(status.get("disruptions") or 0)

    async def all_done(self, limit_s: float) -> bool:
        """Wait until all that can end have ended and the others were told why they wait; False after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                while not all(self._is_done(job) for job in self.jobs):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _is_done(self, job: HonestJob) -> bool:
        record = self.records[job.name]
        return bool(record.codes) if job.never_fits else record.has_ended
