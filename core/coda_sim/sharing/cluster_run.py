"""Runs jobs that share the GPUs of a cluster under one sharing policy. Between two events every speed is constant.

The core decides who goes where (`gpu_placement`, `pairing`) and how much memory each has (`memory_limits`); the model
(`pair_speed`) says how fast jobs then are. After every submission and end, the queue is looked at again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coda.sharing.config import SharingConfig
from coda.sharing.gpu_placement import SharedGpu, gpus_for_guaranteed, gpus_for_opportunistic
from coda.sharing.memory_limits import MemoryReport, MemoryState, MemoryUse, shifted
from coda.sharing.pairing import expected_speed, fits_together
from coda.sharing.policies import Companions, SharingPolicy
from coda_sim.sharing.gpu_trace import GUARANTEED_TENANT, SharingJob
from coda_sim.sharing.model_table import MEASURED
from coda_sim.sharing.pair_speed import DEFAULT_MODEL, PairModel, host_speed, unpaced_speed

ANTMAN_CONFIG = SharingConfig(peak_margin=1.0)
"""AntMan leaves its neighbours all that the guaranteed job's peak does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """What became of one job. `stops`: how often it was stopped for another; `failures`: it ran out of memory."""

    job: SharingJob
    started_s: float
    ended_s: float
    stops: int
    failures: int

    @property
    def jct_s(self) -> float:
        """Seconds from submission to end."""
        return self.ended_s - self.job.submit_s


@dataclass(slots=True, eq=False)
class _Run:
    job: SharingJob
    guaranteed: bool
    left_s: float
    places: tuple[int, ...] = ()
    speed: float = 0.0
    since_s: float = 0.0
    version: int = 0
    started_s: float | None = None
    stops: int = 0
    failures: int = 0
    lonely: bool = False
    in_host: float = 0.0  # share of its peak that is on the host for good


class ClusterRun:
    """One simulation: `nodes` lists the GPUs of each node."""

    def __init__(
        self,
        policy: SharingPolicy,
        nodes: Sequence[int],
        *,
        gpu_bytes: int,
        config: SharingConfig = ANTMAN_CONFIG,
        model: PairModel = DEFAULT_MODEL,
    ) -> None:
        self._policy, self._config, self._model, self._gpu_bytes = policy, config, model, gpu_bytes
        self._cards = [(f"node-{at:04}", index) for at, gpus in enumerate(nodes) for index in range(gpus)]
        self._at_card = {card: at for at, card in enumerate(self._cards)}
        self._residents: list[list[_Run]] = [[] for _ in self._cards]
        self._queue: list[_Run] = []
        self._ends: list[tuple[float, str, int, _Run]] = []
        self._now_s = 0.0
        self._failed = False  # since the queue was looked at

    def run(self, jobs: Sequence[SharingJob]) -> tuple[SharedRun, ...]:
        """Return what became of every job, in order of submission. A job larger than the cluster is not asked for."""
        runs = [
            _Run(job=job, guaranteed=job.tenant == GUARANTEED_TENANT or not self._policy.has_tenants, left_s=job.work_s)
            for job in sorted(jobs, key=lambda job: (job.submit_s, job.uid))
        ]
        ended: dict[str, float] = {}
        coming = 0
        while len(ended) < len(runs):
            next_end_s = self._next_end_s()
            if coming < len(runs) and runs[coming].job.submit_s <= next_end_s:
                self._now_s = runs[coming].job.submit_s
                self._queue.append(runs[coming])
                coming += 1
            else:
                run = heapq.heappop(self._ends)[3]
                self._now_s = next_end_s
                self._leave(run)
                ended[run.job.uid] = next_end_s
            self._failed = True
            while self._failed:
                self._failed = False
                self._schedule()
        return tuple(
            SharedRun(
                job=run.job,
                started_s=run.job.submit_s if run.started_s is None else run.started_s,
                ended_s=ended[run.job.uid],
                stops=run.stops,
                failures=run.failures,
            )
            for run in runs
        )

    def _next_end_s(self) -> float:
        while self._ends and self._ends[0][2] != self._ends[0][3].version:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else float("inf")

    def _schedule(self) -> None:
        """First those within their quota, in order; then all others, in order, who fit where they may go."""
        reserved: dict[int, str] = {}
        for run in [run for run in self._queue if run.guaranteed]:
            if len(reserved) == len(self._cards) or not self._place_first(run, reserved):
                break
        if self._policy.has_tenants:
            for run in [run for run in self._queue if not run.guaranteed]:
                self._place_other(run, reserved)

    def _place_first(self, run: _Run, reserved: dict[int, str]) -> bool:
        """Start a job that may have GPUs of its own, or reserve for it. False: nobody behind it can start either."""
        stoppable = self._policy.preempts or self._policy.companions is Companions.OPPORTUNISTIC
        cluster = [self._card(at, reserved, held=not stoppable) for at in range(len(self._cards))]
        choice = gpus_for_guaranteed(run.job.uid, run.job.gpus, cluster)
        places = self._places(choice.gpus)
        if choice.starts:
            self._make_way(run, places)
            self._start(run, places)
            return True
        shared = () if run.lonely else self._shared_places(run)
        if shared:
            if self._policy.spills:
                run.in_host = max(self._lacking_bytes(at, run) for at in shared) / run.job.profile.peak_bytes
            self._start(run, shared)
            if not self._policy.spills:
                self._fail_if_too_full(shared, run)
            return True
        if self._policy.reserves:
            reserved.update(dict.fromkeys(places, run.job.uid))
        return self._policy.companions is not Companions.NOBODY or any(
            at not in reserved and not (self._residents[at] if not stoppable else self._owner(at))
            for at in range(len(self._cards))
        )

    def _place_other(self, run: _Run, reserved: dict[int, str]) -> None:
        """Start a job without quota, if it can."""
        if self._policy.companions is Companions.OPPORTUNISTIC:
            cluster = [self._card(at, {}, held=False) for at in range(len(self._cards))]
            choice = gpus_for_opportunistic(
                run.job.profile, run.job.gpus, cluster, self._config, MEASURED, by_load=not self._policy.chooses
            )
            places = self._places(choice.gpus)
            if choice.starts and (self._policy.limits_memory or all(self._has_memory(at, run) for at in places)):
                self._start(run, places)
            return
        free = [at for at, residents in enumerate(self._residents) if not residents and at not in reserved]
        if len(free) >= run.job.gpus:
            cluster = [self._card(at, reserved, held=True) for at in range(len(self._cards))]
            choice = gpus_for_guaranteed(run.job.uid, run.job.gpus, cluster)
            if choice.starts:
                self._start(run, self._places(choice.gpus))

    def _shared_places(self, run: _Run) -> tuple[int, ...]:
        """GPUs of one node with one other job each, for a policy that puts two jobs together; none: ()."""
        policy = self._policy
        if policy.companions not in (Companions.ANYBODY, Companions.FITTING, Companions.GAINING):
            return ()
        by_node: dict[str, list[tuple[float, int]]] = {}
        for at, residents in enumerate(self._residents):
            if len(residents) < 2 and not any(one.lonely for one in residents) and self._suits(run, at):
                score = self._load(at)
                if policy.score and residents:
                    score = policy.score(residents[0].job.profile, run.job.profile)
                by_node.setdefault(self._cards[at][0], []).append((score, at))
        ways = [sorted(places)[: run.job.gpus] for places in by_node.values() if len(places) >= run.job.gpus]
        return tuple(at for _, at in min(ways, key=lambda way: way[-1])) if ways else ()

    def _suits(self, run: _Run, at: int) -> bool:
        residents = self._residents[at]
        if not residents or self._policy.companions is Companions.ANYBODY:
            return True
        if not self._has_memory(at, run):
            return False
        one, other = run.job.profile, residents[0].job.profile
        speeds = unpaced_speed(one, [other], self._model) + unpaced_speed(other, [one], self._model)
        return self._policy.companions is Companions.FITTING or speeds > 1

    def _lacking_bytes(self, at: int, run: _Run) -> int:
        others = sum(one.job.profile.peak_bytes for one in self._residents[at])
        return min(max(0, others + run.job.profile.peak_bytes - self._gpu_bytes), run.job.profile.peak_bytes)

    def _fail_if_too_full(self, places: Iterable[int], newcomer: _Run) -> None:
        full = [
            at for at in places if not fits_together([one.job.profile for one in self._residents[at]], self._gpu_bytes)
        ]
        for run in {id(one): one for at in full for one in self._residents[at]}.values():
            if self._policy.newcomer_fails and run is not newcomer:
                continue
            self._failed = True
            run.failures += 1
            run.lonely = True
            self._begin_again(run)

    def _make_way(self, run: _Run, places: Sequence[int]) -> None:
        """A job with a right to these GPUs comes: others are stopped, or give up memory and speed."""
        for other in {id(one): one for at in places for one in self._residents[at]}.values():
            here = [at for at in places if other in self._residents[at]]
            if self._policy.preempts:
                other.stops += 1
                self._begin_again(other)
            elif not self._policy.limits_memory and not all(self._has_memory(at, run) for at in here):
                other.failures += 1
                self._begin_again(other)
            else:
                lost = max(0.0, other.speed - self._config.floor_share / 1000)
                other.left_s += self._model.arriving_steps * run.job.profile.step_s * lost

    def _begin_again(self, run: _Run) -> None:
        self._leave(run)
        run.left_s = run.job.work_s
        self._queue.append(run)
        self._queue.sort(key=lambda one: (one.job.submit_s, one.job.uid))

    def _start(self, run: _Run, places: Sequence[int]) -> None:
        self._queue.remove(run)
        run.places, run.since_s = tuple(places), self._now_s
        run.started_s = self._now_s if run.started_s is None else run.started_s
        for at in places:
            self._residents[at].append(run)
        self._set_speeds(places)

    def _leave(self, run: _Run) -> None:
        places, run.places = run.places, ()
        run.version += 1
        for at in places:
            self._residents[at].remove(run)
        self._set_speeds(places)

    def _set_speeds(self, places: Iterable[int]) -> None:
        for run in {id(one): one for at in places for one in self._residents[at]}.values():
            run.left_s = max(0.0, run.left_s - (self._now_s - run.since_s) * run.speed)
            run.since_s = self._now_s
            run.speed = min(self._speed(at, run) for at in run.places) * host_speed(run.job.profile.key, run.in_host)
            run.version += 1
            heapq.heappush(self._ends, (self._now_s + run.left_s / run.speed, run.job.uid, run.version, run))

    def _speed(self, at: int, run: _Run) -> float:
        residents = self._residents[at]
        if len(residents) == 1:
            return 1.0
        others = [one.job.profile for one in residents if one is not run]
        owner = self._owner(at) if self._policy.companions is Companions.OPPORTUNISTIC else None
        if not self._policy.paced or owner is None:
            speed = unpaced_speed(run.job.profile, others, self._model)
        elif run is owner:
            return 1 / self._model.controlled
        else:
            speed = expected_speed(run.job.profile, owner.job.profile, MEASURED, self._config) / (len(residents) - 1)
        return speed if run is owner or not self._policy.limits_memory else speed * self._host_speed(at, run, owner)

    def _host_speed(self, at: int, run: _Run, owner: _Run | None) -> float:
        uses = {
            one.job.uid: MemoryUse(
                uid=one.job.uid, peak_bytes=one.job.profile.peak_bytes, floor_bytes=one.job.profile.floor_bytes
            )
            for one in self._residents[at]
        }
        first = None if owner is None else uses.pop(owner.job.uid)
        report = MemoryReport(total_bytes=self._gpu_bytes, guaranteed=first, opportunistic=tuple(uses.values()))
        limit = shifted(MemoryState(), report, 0.0, self._config).limit_of(run.job.uid)
        peak = run.job.profile.peak_bytes
        return 1.0 if limit is None or limit >= peak else host_speed(run.job.profile.key, 1 - limit / peak)

    def _owner(self, at: int) -> _Run | None:
        return next((one for one in self._residents[at] if one.guaranteed), None)

    def _has_memory(self, at: int, run: _Run) -> bool:
        profiles = [one.job.profile for one in self._residents[at] if one is not run]
        return fits_together([*profiles, run.job.profile], self._gpu_bytes)

    def _load(self, at: int) -> float:
        return min(1.0, sum(one.job.profile.duty * one.speed for one in self._residents[at]))

    def _card(self, at: int, reserved: dict[int, str], *, held: bool) -> SharedGpu:
        """One GPU as the core sees it. `held`: whoever is on it keeps others away."""
        owner = self._residents[at][0] if held and self._residents[at] else self._owner(at)
        node, index = self._cards[at]
        return SharedGpu(
            node=node,
            index=index,
            total_bytes=self._gpu_bytes,
            load=self._load(at),
            guaranteed=None if owner is None else owner.job.uid,
            reserved_for=reserved.get(at),
            profile=None if owner is None else owner.job.profile,
            sharers=tuple(one.job.profile for one in self._residents[at] if one is not owner),
        )

    def _places(self, gpus: Iterable[SharedGpu]) -> tuple[int, ...]:
        return tuple(self._at_card[gpu.node, gpu.index] for gpu in gpus)
