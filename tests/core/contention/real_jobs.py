"""Training jobs as they are, in a closed loop with the eliminator: pauses, drift, correlated noise, bursts, restarts.

Seeded and pure. A job's true loss to contention is known here, so a run can say how long jobs were protected, and how
long pods were throttled for jobs that lose nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coda.contention import EliminatorState, TrainingSample, Window, observe
from tests.core.contention.contention_world import GB, Load, Node, Victim

LOST = 0.05
"""A job that loses more of its speed to contention counts as unprotected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """The GPUs at `level` of their normal use for `for_s` in every `every_s`, earlier or later by `jitter` of that."""

    every_s: float
    for_s: float
    level: float = 0.0
    first_s: float = 0.0
    jitter: float = 0.0

    def starts(self, rng: random.Random, until_s: float) -> list[float]:
        count = int(until_s / self.every_s) + 1
        shifts = (self.every_s * self.jitter * rng.uniform(-0.5, 0.5) for _ in range(count))
        return [self.first_s + number * self.every_s + shift for number, shift in enumerate(shifts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealJob(Victim):
    """A job that begins at `from_s`. `noise`: relative deviation of one sample, correlated over `correlation_s`.

    `also_on`: sockets on which it works besides. Their contention takes nothing from it, unless it `waits_for_all`: as
    data-parallel training does whose GPUs are on both."""

    from_s: float = 0.0
    pauses: Pauses | None = None
    noise: float = 0.02
    correlation_s: float = 0.0
    drift_per_h: float = 0.0
    ramp_s: float = 0.0  # from half of its utilisation
    cores_by_s: tuple[tuple[float, int], ...] = ((0.0, 4),)
    also_on: frozenset[int] = frozenset()
    waits_for_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst(Load):
    """A load that works for `on_s` of every `every_s`."""

    from_s: float = 30.0
    on_s: float = math.inf
    every_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """What was true of one job in one second."""

    at_s: float
    runs: bool  # neither paused nor ended
    lost: float  # 0..1, by contention
    throttled: frozenset[int]  # the sockets with throttled pods


@dataclass(slots=True)
class RealNode(Node):
    """The closed loop with jobs as they are. `round_s`: from one window to the next."""

    onset_s: float = 0.0
    round_s: float = 1.0
    seconds: dict[str, list[Second]] = field(default_factory=dict)
    restart: Callable[[EliminatorState], EliminatorState] = lambda _state: EliminatorState()
    _rng: random.Random = field(default_factory=random.Random)
    _noise: dict[str, float] = field(default_factory=dict)
    _pauses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def begin(self, until_s: float) -> RealNode:
        self._rng = random.Random(f"{self.seed}")
        for victim in self.victims:
            assert isinstance(victim, RealJob)
            starts = victim.pauses.starts(self._rng, until_s) if victim.pauses else []
            self._pauses[victim.job] = [(at_s, at_s + victim.pauses.for_s) for at_s in starts if victim.pauses]
        return self

    def go(self, until_s: float) -> RealNode:
        """Let time pass until `until_s`."""
        while self.now_s < until_s:
            self.now_s += self.round_s
            window = self._window()
            self.state, actions = observe(self.state, window, self.hardware, self.config)
            for action in actions:
                self._carry_out(action)
        return self

    def restart_agent(self) -> None:
        """The agent ends, undoes its throttles, and starts again."""
        self.state = self.restart(self.state)
        self.limits.clear()
        self.cores.clear()

    def _wanted(self, load: Load) -> float:
        if isinstance(load, Burst):
            on = self.now_s >= load.from_s and (self.now_s - load.from_s) % load.every_s < load.on_s
            if not on:
                return 0.0
        return Node._wanted(self, load)

    def _window(self) -> Window:
        here = [one for one in self.victims if isinstance(one, RealJob) and one.from_s <= self.now_s < one.until_s]
        levels = {one.job: self._level(one) for one in here}
        pressure = dict.fromkeys(self.hardware.peak_bytes_per_s, 0.0)
        wanted = [(load.socket, self._wanted(load)) for load in self.loads]
        wanted += [(one.socket, one.gb_per_s * GB * levels[one.job]) for one in here]
        for socket, rate in wanted:
            pressure[socket] += rate / self.hardware.peak_bytes_per_s[socket]
        pods = tuple(self._pod(load, max(1.0, pressure[load.socket])) for load in self.loads)
        jobs = tuple(self._sample(one, levels[one.job], _pressure_on(one, pressure)) for one in here)
        shares: dict[int, float | None] = {socket: min(1.0, share) for socket, share in pressure.items()}
        return Window(at_s=self.now_s, share_by_socket=shares, pods=pods, jobs=jobs)

    def _level(self, job: RealJob) -> float:
        """The part of its normal utilisation that it would have now, undisturbed."""
        if any(begin <= self.now_s < end for begin, end in self._pauses[job.job]):
            assert job.pauses
            return job.pauses.level
        age_s = self.now_s - job.from_s
        ramp = 0.5 + 0.5 * min(1.0, age_s / job.ramp_s) if job.ramp_s else 1.0
        return ramp * (1 + job.drift_per_h * age_s / 3600)

    def _sample(self, job: RealJob, level: float, pressure: float) -> TrainingSample:
        lost = job.loss * min(1.0, max(0.0, (pressure - 0.75) / 0.25))
        kept = math.exp(-self.round_s / job.correlation_s) if job.correlation_s else 0.0
        before = self._noise.get(job.job, 0.0)
        self._noise[job.job] = kept * before + math.sqrt(1 - kept**2) * self._rng.gauss(0, job.noise)
        share = job.busy * level * (1 - lost) * (1 + self._noise[job.job])
        runs = not any(begin <= self.now_s < end for begin, end in self._pauses[job.job])
        told = Second(
            at_s=self.now_s, runs=runs, lost=lost, throttled=frozenset(t.socket for t in self.state.throttles)
        )
        self.seconds.setdefault(job.job, []).append(told)
        cores = [count for since_s, count in job.cores_by_s if since_s <= self.now_s][-1]
        sockets = frozenset({job.socket, *job.also_on})
        return TrainingSample(job=job.job, sockets=sockets, cores=cores, share=min(1.0, max(0.0, share)))

    def protected(self, since_s: float, job: str = "a/train") -> float:
        """The share of its running time since then in which the job lost less than `LOST` to contention."""
        seen = [second for second in self.seconds[job] if second.at_s >= since_s and second.runs]
        return sum(second.lost <= LOST for second in seen) / len(seen)

    def throttled(self, since_s: float = 0.0, sockets: frozenset[int] = frozenset({0, 1})) -> float:
        """The share of all time since then in which some pod was throttled on one of `sockets`."""
        seen = [second for second in next(iter(self.seconds.values())) if second.at_s >= since_s]
        return sum(bool(second.throttled & sockets) for second in seen) / len(seen)

    def unprotected_until(self, since_s: float, job: str = "a/train") -> float:
        """Seconds of its running time from then until it was protected for 10 s in a row; infinite if it never was."""
        seen = [second for second in self.seconds[job] if second.at_s >= since_s and second.runs]
        for place in range(len(seen)):
            if all(one.lost <= LOST for one in seen[place : place + 10]):
                return place * self.round_s
        return math.inf

    def throttle_times(self, sockets: frozenset[int] = frozenset({0, 1})) -> list[tuple[float, float]]:
        """From when to when some pod was throttled on one of `sockets`."""
        found: list[tuple[float, float]] = []
        for second in next(iter(self.seconds.values())):
            if second.throttled & sockets and found and second.at_s - found[-1][1] <= self.round_s:
                found[-1] = (found[-1][0], second.at_s)
            elif second.throttled & sockets:
                found.append((second.at_s, second.at_s))
        return found


def _pressure_on(job: RealJob, pressure: Mapping[int, float]) -> float:
    return max(pressure[one] for one in (job.socket, *job.also_on)) if job.waits_for_all else pressure[job.socket]


def node_of(*jobs: RealJob, loads: tuple[Load, ...], seed: int, until_s: float) -> RealNode:
    """A node with these jobs and loads, ready to `go` up to `until_s`."""
    return RealNode(loads=loads, victims=jobs, seed=seed).begin(until_s)
