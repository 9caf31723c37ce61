"""Records of made-up jobs, and a store in memory that may be away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coda.errors import Outage
from coda.history import Ending, FinishedJob
from coda_operator.history.writer import RecordRefused


def record(number: int = 0, **fields: Any) -> FinishedJob:
    """A job of two ranks with eight GPUs each that waited 90 s and ran for an hour."""
    ended_s = 1_700_000_000.0 + 100 * number
    values: dict[str, Any] = {
        "uid": f"uid-{number}",
        "attempt": 1,
        "namespace": f"team-{number % 3}",
        "name": f"train-{number}",
        "category": "NLP",
        "model": "bert",
        "replicas": 2,
        "gpus_per_replica": 8,
        "cores_asked": None,
        "cores_tuned": 24,
        "cores_given": 24,
        "ending": Ending.SUCCEEDED,
        "reason": "Succeeded",
        "failure_class": "",
        "queued_s": ended_s - 3690.0,
        "started_s": ended_s - 3590.0,
        "ended_s": ended_s,
        "waits": (("NoFreeGpus", 60.0), ("Queued", 30.0)),
        "held_s": 3600.0,
        "run_s": 3590.0,
        "idle_gpu_s": 5760.5,
        "failures": 0,
    }
    values |= {"owner": (values | fields)["namespace"]}
    return FinishedJob(**(values | fields))


class StoreInMemory:
    """A store whose outage a test decides; `refused` are uids that it will never take."""

    def __init__(self, *, is_away: bool = False, refused: Sequence[str] = ()) -> None:
        self.is_away = is_away
        self.refused = refused
        self.records: dict[tuple[str, int], FinishedJob] = {}
        self.writes = 0

    def migrate(self) -> None:
        self._answer()

    def write(self, jobs: Sequence[FinishedJob]) -> int:
        self._answer()
        for job in jobs:
            if job.uid in self.refused:
                raise RecordRefused(f"no place for {job.uid}")
        self.writes += 1
        new = {(job.uid, job.attempt): job for job in jobs}
        self.records = new | self.records
        return len(new)

    def _answer(self) -> None:
        if self.is_away:
            raise Outage("nobody answers")
