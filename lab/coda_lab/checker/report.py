"""The referee's answer: breaches, and how much it examined, so that "no breach" is never an empty watch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from coda.wording import counted
from coda_kube.objects.quantities import time_from_seconds


class Invariant(Enum):
    """An invariant of every cluster that Coda runs. The letters are those of the design."""

    NODE_OVER_COMMITTED = "a"  # per node and resource: bound pods that have not ended <= allocatable
    PLAN_OVER_COMMITTED = "b"  # the same, with released placements whose ranks are not bound yet
    POD_WITHOUT_PLAN = (
        "c"  # a Coda pod lives only under a released placement of its attempt, pinned as the placement says
    )
    TWO_LIVE_ATTEMPTS = "d"  # of one job, except for terminating pods on lost nodes
    HALF_BOUND_GANG = "e"  # past its bind deadline
    STARTED_TWICE = "f"  # the same rank of the same attempt
    WAITING_UNEXPLAINED = "g"  # or explained again and again with nothing new
    TENANT_RULE_BROKEN = "h"  # on any level: started beyond a limit, or stopped for an owner within its own

    @property
    def title(self) -> str:
        """Readable: `pod without plan`."""
        return self.name.replace("_", " ").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A broken invariant: when it was established, on which objects (`Kind/namespace/name`), and how."""

    invariant: Invariant
    time_s: float
    objects: tuple[str, ...]
    sentence: str

    def as_json(self) -> dict[str, Any]:
        """For `--out` and reports of other programs."""
        return {
            "invariant": self.invariant.value,
            "title": self.invariant.title,
            "time": time_from_seconds(self.time_s),
            "objects": list(self.objects),
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The number of different objects examined since the checker began; maxima where named so."""

    nodes: int = 0
    pods: int = 0
    jobs: int = 0
    attempts: int = 0  # of which at least one pod was seen
    plans: int = 0  # seen released
    most_waiting: int = 0  # jobs waiting at the same time
    evaluations: int = 0
    confirmations: int = 0  # fresh consistent lists read to confirm a suspicion
    dropped: int = 0  # suspicions that the fresh list did not confirm
    outages: int = 0  # times the API server could not be watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole answer; `notes` say what could not be judged."""

    started_s: float
    ended_s: float
    breaches: tuple[Breach, ...]
    counts: Counts
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """One line: `no breach: 12 nodes, 340 pods, 25 jobs looked at`."""
        counts = self.counts
        found = {0: "no breach", 1: "1 breach"}.get(len(self.breaches), f"{len(self.breaches)} breaches")
        seen = ", ".join((counted(counts.nodes, "node"), counted(counts.pods, "pod"), counted(counts.jobs, "job")))
        return f"{found}: {seen} looked at"

    def as_json(self) -> dict[str, Any]:
        """For `--out`."""
        return {
            "started": time_from_seconds(self.started_s),
            "ended": time_from_seconds(self.ended_s),
            "breaches": [breach.as_json() for breach in self.breaches],
            "counts": asdict(self.counts),
            "notes": list(self.notes),
        }
