"""The options of a run and its results: values, the verdict, the JSON. Measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from coda.model import Phase, WaitCode
from coda.wording import counted
from coda_lab.checker import Breach
from coda_lab.experiments.hostile.honest import STEPS, HonestJob, Record
from coda_lab.experiments.hostile.measures import Cycles
from coda_lab.experiments.hostile.sender import Tally
from coda_lab.experiments.load.plans import NAMESPACE
from coda_lab.kubelets.nodes import node_specs

CYCLES_LIMIT: Final = 2.0  # times the mean cycle beside harmless objects
CYCLES_FLOOR_S: Final = 0.003  # a mean below this is noise
MEDIAN_DELAY_S: Final = 1.0
DELAY_S: Final = 10.0  # of one job: the machine stores thousands of objects meanwhile
MEMORY_BYTES: Final = 256 << 20  # growth of one part beside the objects themselves
UNEXPLAINED: Final = ("at_the_limit", "orphaned")
"""Nobody can write to these objects, or they are being deleted: so nobody can explain them there."""
FOR_EACH_OTHER: Final = frozenset({WaitCode.INSUFFICIENT_GPUS.value})
"""What honest jobs may wait for that wait for each other. How long they do is judged apart."""
SHOWN: Final = 10


def honest_nodes(nodes: str) -> tuple[str, ...]:
    """The names of the nodes that only honest jobs may use: the first half."""
    names = [node.name for node in node_specs(nodes, racks=1)]
    return tuple(names[: len(names) // 2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Store `count` objects from `seed` beside `jobs` honest jobs. Half of the nodes are the honest jobs'.

    `rate`: objects per second; above what the control plane's cores can store, all wait for its CPU. `ways`: only
    these classes of objects; empty for all. `limit_s`: by then the honest jobs must have ended.
    `settle_s`: from then to the last look. `logs`: where the parts' logs go; None keeps none.
    """

    count: int
    seed: int
    jobs: int = 100
    rate: float = 6.0
    nodes: str = "8x8x48"
    limit_s: float = 240.0
    settle_s: float = 10.0
    ways: frozenset[str] = frozenset()
    logs: Path | None = None

    @property
    def over_s(self) -> float:
        """How long objects and honest jobs come."""
        return self.count / self.rate


@dataclass(slots=True, kw_only=True)
class PhaseSeen:
    """What was seen in one phase. `rows`: the printed columns of the stored TrainingJobs."""

    jobs: tuple[HonestJob, ...]
    records: Mapping[str, Record]
    all_done: bool
    tally: Tally
    rows: Mapping[str, Mapping[str, Any]]
    cycles: Cycles
    memory_before: Mapping[str, int]
    memory_after: Mapping[str, int]
    ended_processes: tuple[str, ...]
    tracebacks: Mapping[str, int]
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # by part, until the honest jobs had ended
    lasted_s: float = 0.0
    left: tuple[str, ...] = ()

    def unexplained(self) -> list[str]:
        """The stored TrainingJobs that say neither what they are nor why they wait."""
        found = []
        for name, way in self.tally.jobs.items():
            row = self.rows.get(name)
            if row is None or way in UNEXPLAINED:
                continue
            phase, said = row.get("Phase"), row.get("Why") or row.get("Message")
            if phase in (None, "", Phase.QUEUED.value, Phase.FAILED.value) and not said:
                found.append(f"{name} ({way}): phase {phase or 'none'}, and no reason")
        return found


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of both phases."""

    options: Options
    control: PhaseSeen
    attack: PhaseSeen
    breaches: tuple[Breach, ...]
    referee_failed: str
    restarts_by_part: Mapping[str, int]
    versions: Mapping[str, str]
    machine: Mapping[str, float]
    took_s: float
    _delays: dict[str, float] = field(default_factory=dict)

    @property
    def delays(self) -> dict[str, float]:
        """How much later each honest job started beside the hostile objects."""
        if not self._delays:
            for job in self.control.jobs:
                before, after = self.control.records[job.name].waited_s, self.attack.records[job.name].waited_s
                if before is not None and after is not None:
                    self._delays[job.name] = after - before
        return self._delays

    @property
    def cycle_ratio(self) -> float:
        """The mean planning cycle beside hostile objects, in means beside harmless ones."""
        return self.attack.cycles.mean_s / max(self.control.cycles.mean_s, CYCLES_FLOOR_S)

    def problems(self) -> list[str]:
        """Each problem as a sentence; none if the run passed."""
        return [*self._of_objects(), *self._of_jobs(), *self._of_processes(), *self._of_invariants()]

    def _of_objects(self) -> Iterator[str]:
        tally = self.attack.tally
        if tally.stored_count < self.options.count:
            yield f"only {tally.stored_count} of {self.options.count} objects were stored"
        for each in tally.unclear[:SHOWN]:
            yield f"refused without a sentence: {each}"
        for each in self.attack.unexplained()[:SHOWN]:
            yield f"stored and not explained: {each}"
        for each in self.attack.left[:SHOWN]:
            yield f"cannot be deleted: {each}"

    def _of_jobs(self) -> Iterator[str]:
        if not self.attack.all_done:
            yield f"the honest jobs had not all ended after {self.options.limit_s:g} s"
        for job in self.control.jobs:
            before, after = self.control.records[job.name], self.attack.records[job.name]
            if before.phase != after.phase:
                yield f"{job.name} is {after.phase or 'not accepted'}, beside harmless objects {before.phase}"
            if after.failures or after.disruptions or after.attempt > before.attempt:
                yield f"{job.name}: attempt {after.attempt}, failures {after.failures}, disruptions {after.disruptions}"
            if job.never_fits and after.codes != before.codes:
                yield f"{job.name} waits for {sorted(after.codes)}, beside harmless objects for {sorted(before.codes)}"
        strange = {code for each in self.attack.records.values() for code in each.codes}
        strange -= {code for each in self.control.records.values() for code in each.codes} | FOR_EACH_OTHER
        if strange:
            yield f"honest jobs waited for {sorted(strange)}: never said beside harmless objects"
        yield from self._of_delays()

    def _of_delays(self) -> Iterator[str]:
        if self.delays and median(self.delays.values()) > MEDIAN_DELAY_S:
            yield f"honest jobs start {median(self.delays.values()):.1f} s later (median)"
        for name, delay_s in sorted(self.delays.items(), key=lambda item: -item[1])[:SHOWN]:
            if delay_s > DELAY_S:
                yield f"{name} starts {delay_s:.1f} s later"

    def _of_processes(self) -> Iterator[str]:
        for part, many in self.restarts_by_part.items():
            yield f"{part} ended by itself {counted(many, 'time')}"
        for part in self.attack.ended_processes:
            yield f"a process of {part} ended"
        for part, many in self.attack.tracebacks.items():
            if many:
                yield f"{counted(many, 'traceback')} in the log of {part}"
        if self.attack.cycles.errors:
            yield f"{self.attack.cycles.errors:g} errors of the planner"
        if self.cycle_ratio > CYCLES_LIMIT:
            yield f"planning cycles take {self.cycle_ratio:.1f} times as long"
        for part, grown in self._grown().items():
            if grown > MEMORY_BYTES + self.attack.tally.bytes_stored and part.startswith(("extender", "operator")):
                yield f"{part} grew by {grown >> 20} MiB beside {self.attack.tally.bytes_stored >> 20} MiB of objects"

    def _grown(self) -> dict[str, int]:
        before, after = self.attack.memory_before, self.attack.memory_after
        return {part: after[part] - before.get(part, 0) for part in after}

    def _of_invariants(self) -> Iterator[str]:
        if self.referee_failed:
            yield self.referee_failed
        for breach in self.breaches_of_others():
            yield f"invariant ({breach.invariant.value}): {breach.sentence}"

    def breaches_of_others(self) -> tuple[Breach, ...]:
        """The breaches that harm somebody else than the owner of a hostile object: at an honest job or its nodes.

        On the other nodes kube-scheduler itself binds too much: sums of requests overflow there."""
        nodes = {f"Node/{name}" for name in honest_nodes(self.options.nodes)}
        return tuple(
            each for each in self.breaches if any(name in nodes or f"/{NAMESPACE}/" in name for name in each.objects)
        )

    def as_json(self) -> dict[str, Any]:
        """The report."""
        problems, tally = self.problems(), self.attack.tally
        delays = sorted(self.delays.values()) or [0.0]
        return {
            "passed": not problems,
            "problems": problems,
            "seed": self.options.seed,
            "nodes": self.options.nodes,
            "objects_per_s": self.options.rate,
            "took_s": round(self.took_s, 1),
            "versions": dict(self.versions),
            "machine": dict(self.machine),
            "objects": {
                "stored": tally.stored_count,
                "kinds": tally.kinds,
                "mib": round(tally.bytes_stored / 2**20, 1),
                "stored_by_kind": _sums(tally.stored, 0),
                "stored_by_class": _sums(tally.stored, 1),
                "refused_by_class": _sums(tally.refused, 0),
                "refusals": dict(sorted(tally.examples.items())),
                "deeds": {f"{way}: {what}": many for (way, what), many in sorted(tally.deeds.items())},
            },
            "honest_jobs": {
                "count": len(self.control.jobs),
                "delay_median_s": round(median(delays), 2),
                "delay_p90_s": round(delays[int(len(delays) * 0.9)], 2),
                "delay_most_s": round(delays[-1], 2),
                "waited_mean_s": {name: round(_mean_wait(seen), 2) for name, seen in self._phases()},
                "steps_mean_s": {name: _mean_steps(seen) for name, seen in self._phases()},
                "ends": {
                    name: dict(Counter(each.phase for each in seen.records.values())) for name, seen in self._phases()
                },
            },
            "cycles": {name: _cycles_json(seen.cycles) for name, seen in self._phases()}
            | {"ratio": round(self.cycle_ratio, 2)},
            "memory_mib": {
                part: [round(each.get(part, 0) / 2**20, 1) for each in self._memories()]
                for part in sorted(self.attack.memory_after)
            },
            "cores_used": {name: _cores(seen) for name, seen in self._phases()},
            "memory_measured": "PSS of all processes of a part: before and after harmless objects, then hostile ones",
            "restarts": dict(self.restarts_by_part),
            "breaches": [each.as_json() for each in self.breaches],
        }

    def _phases(self) -> tuple[tuple[str, PhaseSeen], ...]:
        return ("control", self.control), ("attack", self.attack)

    def _memories(self) -> tuple[Mapping[str, int], ...]:
        return (
            self.control.memory_before,
            self.control.memory_after,
            self.attack.memory_before,
            self.attack.memory_after,
        )


def _sums(counts: Counter[Any], side: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for key, many in counts.items():
        found[str(key[side])] += many
    return dict(sorted(found.items()))


def _mean_wait(seen: PhaseSeen) -> float:
    waits = [each.waited_s for each in seen.records.values() if each.waited_s is not None]
    return sum(waits) / len(waits) if waits else 0.0


def _mean_steps(seen: PhaseSeen) -> dict[str, float]:
    steps = [each.steps_s() for each in seen.records.values()]
    taken = {step: [each[step] for each in steps if step in each] for step in STEPS}
    return {step: round(sum(times) / len(times), 2) for step, times in taken.items() if times}


def _cores(seen: PhaseSeen) -> dict[str, float]:
    return {part: round(cpu_s / max(seen.lasted_s, 1.0), 2) for part, cpu_s in sorted(seen.cpu_s.items())}


def _cycles_json(cycles: Cycles) -> dict[str, float]:
    return {
        "count": cycles.count,
        "mean_ms": round(1000 * cycles.mean_s, 2),
        "p50_up_to_ms": 1000 * cycles.share_s(0.5),
        "p99_up_to_ms": 1000 * cycles.share_s(0.99),
        "errors": cycles.errors,
    }
