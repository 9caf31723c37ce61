"""The run's result as one JSON object, and the sentences for what went wrong. Reads records, measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from coda_kube.objects.quantities import time_from_seconds
from coda_lab.checker import Breach, Invariant
from coda_lab.checker import Report as Check
from coda_lab.checker.invariants import REASON_S, UNSAID
from coda_lab.experiments.chaos.accidents import Mishap
from coda_lab.experiments.chaos.faults import BUDGET_S, BUDGETED, Struck
from coda_lab.experiments.chaos.happenings import Happened
from coda_lab.experiments.chaos.lending import Lent
from coda_lab.experiments.chaos.schedule import LONGER_THAN_A_LEASE_S, STORAGE, Fault, Kind, Target
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.recorded import Recorded
from coda_lab.experiments.load.shared_gpus import Shared
from coda_lab.experiments.load.stops import Stops
from coda_lab.experiments.load.wishes import Wishes

AFTER_A_JUMP_S: Final = 60.0  # as long as a placement made meanwhile may withhold capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The records of a run. `drained_s` None: work was open when the drain's limit was over."""

    seed: int
    nodes: str
    began_s: float
    ended_s: float
    drained_s: float | None
    versions: Mapping[str, str]
    machine: Mapping[str, float]
    struck: tuple[Struck, ...]
    happened: tuple[Happened, ...]
    check: Check
    account: Account
    restarts_by_part: Mapping[str, int]
    stops: Stops
    history: Recorded
    lent: Lent | None = None
    tenant_edits: int = 0
    shared: Shared | None = None
    wishes: Wishes | None = None

    def breaches(self) -> tuple[Breach, ...]:
        """The breaches that are Coda's."""
        excused = (*self.late_by_link(), *self.by_clock())
        return tuple(each for each in self.check.breaches if each not in excused)

    def late_by_link(self) -> tuple[Breach, ...]:
        """Reasons that came late while the planner's link was late. With 3 s for a question and its answer, no planner
        can see a job, write why it waits and see that written within the 5 s of a working network.
        """
        slow = [each for each in self.struck if (each.fault.target, each.fault.kind) == (Target.PLANNER, Kind.DELAY)]
        return tuple(
            breach
            for breach in self.check.breaches
            if breach.invariant is Invariant.WAITING_UNEXPLAINED
            and breach.sentence.endswith(UNSAID)
            and any(each.began_s <= breach.time_s <= each.ended_s + REASON_S for each in slow)
        )

    def by_clock(self) -> tuple[Breach, ...]:
        """Placements on foreign pods while the planner's clock was ahead: the placement's time says which pods it must
        have seen, so with a wrong one it accuses the planner of pods that came later.
        """
        ahead = [each for each in self.happened if each.mishap.target == "planner" and each.mishap.jump_s > 0]
        return tuple(
            breach
            for breach in self.check.breaches
            if breach.invariant is Invariant.PLAN_OVER_COMMITTED
            and any(each.began_s <= breach.time_s <= each.ended_s + AFTER_A_JUMP_S for each in ahead)
        )

    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem; none for a run that passed."""
        found = [f"invariant ({each.invariant.value}): {each.sentence}" for each in self.breaches()]
        found += self.account.problems()
        found += [_sentence(each) for each in self.struck if each.over_budget]
        found += [problem for each in self.happened for problem in each.problems]
        found += self.lent.problems() if self.lent is not None else ()
        found += (*self.stops.problems(), *self.history.problems())
        found += self.shared.problems() if self.shared is not None else ()
        found += self.wishes.problems() if self.wishes is not None else ()
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """The report."""
        problems = self.problems()
        slowest = max((each.recovery_s for each in self.struck if each.recovery_s is not None), default=None)
        return {
            "passed": not problems,
            "problems": list(problems),
            "seed": self.seed,
            "nodes": self.nodes,
            "began": time_from_seconds(self.began_s),
            "ended": time_from_seconds(self.ended_s),
            "duration_s": round(self.ended_s - self.began_s, 1),
            "drained_s": None if self.drained_s is None else round(self.drained_s, 1),
            "versions": dict(self.versions),
            "machine": dict(self.machine),
            "kills_by_part": {
                part: kinds[Kind.KILL.value]
                for part, kinds in faults_by_part(self.struck).items()
                if Kind.KILL.value in kinds
            },
            "faults_by_part": faults_by_part(self.struck),
            "slowest_recovery_s": _rounded(slowest),
            "recovery_by_part": recovery_by_part(self.struck),
            "planner_failover": planner_failover(self.struck),
            "breaches": [each.as_json() for each in self.breaches()],
            "by_clock": [each.as_json() for each in self.by_clock()],
            "late_by_link": [each.as_json() for each in self.late_by_link()],
            "checked": asdict(self.check.counts) | {"notes": list(self.check.notes)},
            "jobs": self.account.as_json(),
            "foreign_pods": self.account.pods_as_json(),
            "stops": self.stops.as_json(),
            "history": self.history.as_json(),
            "tenant_edits": self.tenant_edits,
            "wishes": None if self.wishes is None else self.wishes.as_json(),
            "shared_gpus": None if self.shared is None else self.shared.as_json(),
            "lending": None if self.lent is None else asdict(self.lent),
            "restarts_after_ending_by_themselves": {
                part: count for part, count in self.restarts_by_part.items() if count
            },
            "accidents": [_accident_json(each, self.began_s) for each in self.happened],
            "faults": [_fault_json(each, self.began_s) for each in self.struck],
        }


def schedule_json(faults: tuple[Fault, ...], mishaps: tuple[Mishap, ...] = ()) -> list[dict[str, Any]]:
    """The schedule of a run: the same for the same seed."""
    found = [asdict(fault) | {"target": fault.target.value, "kind": fault.kind.value} for fault in faults]
    return found + [asdict(mishap) | {"accident": mishap.accident.value} for mishap in mishaps]


def faults_by_part(struck: tuple[Struck, ...]) -> dict[str, dict[str, int]]:
    """How often each part met each kind of fault: `{"etcd": {"kill": 9, "stop": 2}}`."""
    counts = Counter((each.fault.target.value, each.fault.kind.value) for each in struck)
    found: dict[str, dict[str, int]] = {}
    for (target, kind), count in sorted(counts.items()):
        found.setdefault(target, {})[kind] = count
    return found


def recovery_by_part(struck: tuple[Struck, ...]) -> dict[str, dict[str, Any]]:
    """Count, median and slowest recovery of each part, over all kinds of fault, and how many never came."""
    targets = sorted({each.fault.target.value for each in struck})
    return {target: _times([each for each in struck if each.fault.target.value == target]) for target in targets}


def planner_failover(struck: tuple[Struck, ...]) -> dict[str, Any]:
    """The planner's fail-over against its budget: to the first gang pod bound under the new leader.

    `taken_over`: the SIGKILLs after which the replica stayed away for longer than the Lease, so that the standby took
    over. The budget is about `after_sigkill` and `after_api_outage`; `after_other_faults` (stopped, cut off) must keep
    it too.
    """
    its_own = [each for each in struck if each.fault.target is Target.PLANNER]
    kills = [each for each in its_own if each.fault.kind is Kind.KILL]
    return {
        "budget_s": max((each.budget_s for each in struck), default=BUDGET_S),
        "after_sigkill": _times(kills),
        "taken_over": _times([each for each in kills if each.fault.lasts_s >= LONGER_THAN_A_LEASE_S[0]]),
        "after_api_outage": _times([each for each in struck if each.fault.target in STORAGE]),
        "after_other_faults": _times([each for each in its_own if each.fault.kind is not Kind.KILL]),
        "over": sum(each.over_budget for each in struck if each.fault.target in BUDGETED),
    }


def _times(struck: Sequence[Struck]) -> dict[str, Any]:
    known = [took_s for each in struck if (took_s := each.recovery_s) is not None]
    return {
        "count": len(struck),
        "median_s": _rounded(median(known)) if known else None,
        "slowest_s": _rounded(max(known, default=None)),
        "never": len(struck) - len(known),
    }


def _fault_json(struck: Struck, began_s: float) -> dict[str, Any]:
    fault = struck.fault
    return {
        "number": fault.number,
        "target": fault.target.value,
        "part": struck.part,
        "kind": fault.kind.value,
        "joins": fault.joins,
        "pause_s": fault.pause_s,
        "lasts_s": fault.lasts_s,
        "delay_s": fault.delay_s,
        "began_s": round(struck.began_s - began_s, 2),
        "ended_s": round(struck.ended_s - began_s, 2),
        "recovery_s": _rounded(struck.recovery_s),
        "over_budget": struck.over_budget,
    }


def _accident_json(happened: Happened, began_s: float) -> dict[str, Any]:
    return {
        "number": happened.mishap.number,
        "accident": happened.mishap.accident.name.lower().replace("_", " "),
        "what": happened.what,
        "began_s": round(happened.began_s - began_s, 2),
        "ended_s": round(happened.ended_s - began_s, 2),
        "recovery_s": _rounded(happened.recovery_s),
        "problems": list(happened.problems),
    }


def _sentence(struck: Struck) -> str:
    fault = struck.fault
    what = f"fault {fault.number}, {fault.kind.value} of the {fault.target.value} ({struck.part})"
    if struck.recovery_s is None:
        return f"{what}: no progress afterwards"
    return f"{what}: progress after {struck.recovery_s:.1f} s, the budget is {struck.budget_s:g} s"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
