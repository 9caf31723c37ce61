"""The race's result as one JSON object, and the sentences for what went wrong. Reads records, measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from coda_kube.objects.quantities import time_from_seconds
from coda_lab.checker import Breach, Invariant
from coda_lab.checker import Report as Check
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.race.attempts import Attempts
from coda_lab.experiments.race.refusals import Refusals


class Schedulers(Enum):
    """The scheduler of the foreign pods."""

    ONE = "one"  # the kube-scheduler process that asks the extender: a shared pool
    TWO = "two"  # another one, which knows no placements: a pool whose taint foreign pods tolerate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The records of a race. `drained_s` None: work was open when the limit was over."""

    seed: int
    nodes: str
    schedulers: Schedulers
    began_s: float
    ended_s: float
    drained_s: float | None
    versions: Mapping[str, str]
    machine: Mapping[str, float]
    check: Check
    account: Account
    attempts: Attempts
    refusals: Refusals

    def double_bookings(self) -> tuple[Breach, ...]:
        """Nodes seen over-committed until a kubelet refused one of the pods: two schedulers do this to each other.

        Never with one scheduler: there it is a breach like any other.
        """
        if self.schedulers is Schedulers.ONE:
            return ()
        return tuple(each for each in self.check.breaches if self._was_refused(each))

    def breaches(self) -> tuple[Breach, ...]:
        """All others."""
        excused = self.double_bookings()
        return tuple(each for each in self.check.breaches if each not in excused)

    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem; none for a clean race."""
        found = [f"invariant ({each.invariant.value}): {each.sentence}" for each in self.breaches()]
        found += self.account.problems()
        found += self._unexpected_refusals()
        found += self._halves()
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """The report."""
        problems = self.problems()
        return {
            "passed": not problems,
            "problems": list(problems),
            "seed": self.seed,
            "nodes": self.nodes,
            "schedulers": self.schedulers.value,
            "began": time_from_seconds(self.began_s),
            "ended": time_from_seconds(self.ended_s),
            "duration_s": round(self.ended_s - self.began_s, 1),
            "drained_s": None if self.drained_s is None else round(self.drained_s, 1),
            "versions": dict(self.versions),
            "machine": dict(self.machine),
            "gangs": self.account.as_json(),
            "attempts": self._attempts_json(),
            "foreign_pods": self.account.pods_as_json(),
            "refused_pods": self.refusals.as_json(),
            "breaches": [each.as_json() for each in self.breaches()],
            "double_bookings_seen": len(self.double_bookings()),
            "checked": asdict(self.check.counts) | {"notes": list(self.check.notes)},
        }

    def _was_refused(self, breach: Breach) -> bool:
        pods = [name.removeprefix("Pod/") for name in breach.objects if name.startswith("Pod/")]
        return breach.invariant is Invariant.NODE_OVER_COMMITTED and any(map(self.refusals.had, pods))

    def _unexpected_refusals(self) -> Iterator[str]:
        if self.schedulers is Schedulers.ONE:
            for pod, reason in (self.refusals.of_gangs | self.refusals.of_foreign_pods).items():
                yield f"pod {pod} was refused by its kubelet: {reason}"

    def _halves(self) -> Iterator[str]:
        """Attempts that lost a rank and were not rolled back whole; a breach may report the same earlier."""
        for attempt in self.attempts.hit:
            name = f"attempt {attempt.number} of gang {attempt.job}"
            if attempt.live:
                yield f"{name} lost {len(attempt.refused)} ranks to kubelets, and {len(attempt.live)} of its pods live"
            entry = self.account.jobs.get(attempt.job)
            if entry is not None and int(entry.status.get("attempt") or 1) <= attempt.number:
                yield f"{name} lost {len(attempt.refused)} ranks to kubelets, and none came after it"

    def _attempts_json(self) -> dict[str, Any]:
        attempts, now_s = self.attempts, self.ended_s
        whole = [each for each in attempts.by_key.values() if each.whole_s is not None and not each.refused]
        longest, slowest_s = attempts.longest_partial(), attempts.slowest_roll_back_s()
        return {
            "with_pods": len(attempts.by_key),
            "whole": len(whole),
            "rolled_back": len(attempts.by_key) - len(whole),
            "most_of_one_gang": max((each.number for each in attempts.by_key.values()), default=0),
            "hit_by_a_refusal": len(attempts.hit),
            "slowest_roll_back_s": None if slowest_s is None else round(slowest_s, 2),
            "longest_partial_gang": None
            if longest is None
            else {"gang": longest.job, "attempt": longest.number, "partial_s": round(longest.partial_s(now_s), 2)},
        }
