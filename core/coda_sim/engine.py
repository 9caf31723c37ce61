"""The event loop: a heap of (time, sequence, event), and nothing about scheduling.

At each moment all that happens then is applied first; then, if a job waits and anything changed that could let it
start, `decide` is asked, the planner's own, and what it says is done. Equal jobs in any order give the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Protocol

from coda.config import PolicyConfig
from coda.memory import Memory
from coda.model import JobId, World
from coda.outcomes import Plan
from coda.plan import decide
from coda_sim.adapting import Allocator
from coda_sim.cluster import Cluster
from coda_sim.contending import Eliminator
from coda_sim.idling import Idling
from coda_sim.log import Entry, Log, Piece, Trail
from coda_sim.pace import Pacing
from coda_sim.rows import Gang
from coda_sim.running import Running, job_from_gang
from coda_sim.setting import Setting
from coda_sim.traits import TraitDraws

TELL_EVERY = 500  # moments between two reports of progress


class Decide(Protocol):
    """The planner's `decide`, or one that watches it."""

    def __call__(
        self, world: World, config: PolicyConfig, now_s: float, memory: Memory | None, *, explain: int | None
    ) -> Plan:
        """As `coda.plan.decide`."""


class Event(Enum):
    """What can happen."""

    SUBMIT = "submit"
    RESTARTED = "restarted"  # a restart is paid for: work goes on
    WINDOW = "window"  # a profiling step of the allocator is over
    LOOK = "look"  # a window of the eliminator is over, on one node
    END = "end"


class Simulation:
    """One workload under one policy. Use once."""

    def __init__(self, setting: Setting, gangs: Sequence[Gang], traits: TraitDraws, *, decide: Decide = decide) -> None:
        self._setting = setting
        self._decide = decide
        self._cluster = Cluster(setting.shape)
        self._pacing = Pacing(self._cluster, setting.profiles)
        self._idling = Idling(self._cluster)
        self._allocator = Allocator(setting.config, setting.shape) if setting.allocator else None
        self._memory = Memory()
        self._trail = Trail()
        self._eliminator = Eliminator(setting.contention, self._pacing.peak_bytes_per_s) if setting.contention else None
        self._heap: list[tuple[float, int, Event, Running | None, int]] = []  # version, or the node to look at
        self._sequence = 0
        self._gangs = iter(sorted(gangs, key=lambda gang: (gang.row.submit_s, gang.row.job_id)))
        self._traits = traits
        self._entries: dict[JobId, Entry] = {}
        self._now_s = 0.0
        self._busy_gpus = self._useful_gpus = 0.0
        self._held_gpus = self._held_cores = 0
        self._may_start = False  # something changed since the last round that could let a job start
        self._rounds = 0

    def run(self, tell: Callable[[float, int], None] | None = None) -> Log:
        """Everything from the first submission to the last end. `tell`: virtual time and jobs that ended, now and then.

        Jobs that still wait when nothing runs any more never start: they are refused, with the planner's reason."""
        self._next_submission()
        moments = ended = 0
        while self._heap:
            self._now_s = now_s = self._heap[0][0]
            while self._heap and self._heap[0][0] == now_s:
                _, _, event, run, version = heappop(self._heap)
                ended += self._apply(event, run, version)
            while self._may_start and self._cluster.waiting:
                self._round()
            self._may_start = False
            self._note()
            moments += 1
            if tell is not None and moments % TELL_EVERY == 0:
                tell(now_s, ended)
        self._refuse_the_rest()
        return Log(
            entries=tuple(self._entries.values()),
            trail=self._trail,
            end_s=self._now_s,
            gpus=self._cluster.gpus,
            cores=self._cluster.cores,
            node_names=tuple(node.name for node in self._cluster.nodes),
            rounds=self._rounds,
            throttles=self._eliminator.throttles if self._eliminator else 0,
        )

    def _apply(self, event: Event, run: Running | None, version: int) -> bool:
        """True when a job ended."""
        if run is None:
            self._look(version)
        elif event is Event.SUBMIT:
            self._submit(run)
        elif event is Event.WINDOW:
            if version == run.attempt and run.nodes:
                self._tune(run)
        elif version == run.version:
            if event is Event.END:
                self._end(run)
                return True
            self._repace((run,))
        return False

    def _next_submission(self) -> None:
        gang = next(self._gangs, None)
        if gang is not None:
            traits = self._traits.of(gang.row)
            self._push(gang.row.submit_s, Event.SUBMIT, Running(gang, traits, job_from_gang(gang)))

    def _push(self, at_s: float, event: Event, run: Running) -> None:
        self._sequence += 1
        version = run.attempt if event is Event.WINDOW else run.version
        heappush(self._heap, (at_s, self._sequence, event, run, version))

    def _submit(self, run: Running) -> None:
        self._next_submission()
        if self._allocator and run.traits.profile:
            run.ask(self._allocator.proposed_cores(run.gang, run.traits.profile))
        self._entries[run.job.id] = Entry(gang=run.gang)
        self._wait(run)

    def _watch(self, numbers: Iterable[int]) -> None:
        """Look at the windows of these nodes while what is wanted of their bandwidth reaches the trigger."""
        if self._eliminator is None:
            return
        for number in sorted(numbers):
            is_contended = self._pacing.share(number) >= self._eliminator.config.trigger_share
            if is_contended and not self._eliminator.watches(number):
                self._eliminator.watch(number, self._now_s)
                self._look_again(number, self._eliminator)

    def _look_again(self, number: int, eliminator: Eliminator) -> None:
        self._sequence += 1
        at_s = self._now_s + eliminator.config.window_s
        heappush(self._heap, (at_s, self._sequence, Event.LOOK, None, number))

    def _look(self, number: int) -> None:
        """A window is over: the CPU jobs of the node get the bandwidth that the eliminator leaves them."""
        assert self._eliminator is not None
        runs = list(self._cluster.on_node[number].values())
        undisturbed = {run.job.id: self._pacing.undisturbed_utilisation(run) for run in runs if run.gpus}
        share = self._pacing.share(number)
        limits = self._eliminator.limits(number, self._now_s, share, runs, undisturbed)
        for run in runs:
            if not run.gpus and limits[run.job.id] != run.limit:
                self._limit(run, limits[run.job.id])
        if not self._eliminator.is_over(number, self._pacing.share(number)):
            self._look_again(number, self._eliminator)

    def _limit(self, run: Running, limit: float) -> None:
        touched = self._pacing.left(run)
        run.limit = limit
        touched |= self._pacing.joined(run)
        self._repace((run, *(other for other in self._pacing.neighbours(touched) if other.pace)))

    def _wait(self, run: Running) -> None:
        self._cluster.enqueue(run)
        if run.gpus:
            self._idling.wait(run)
        self._may_start = True

    def _round(self) -> None:
        self._rounds += 1
        self._may_start = False
        world = self._cluster.world()
        plan = self._decide(world, self._setting.config, self._now_s, self._memory, explain=0)
        for start in plan.starts:
            run = self._cluster.waiting[start.job]
            if run.gpus:
                self._idling.leave(run)
            self._cluster.start(run, start, self._now_s)
            self._begin(run)

    def _begin(self, run: Running) -> None:
        """It has its nodes: a piece begins."""
        now_s = self._now_s
        run.since_s, run.limit = now_s, 1.0
        self._begin_piece(run)
        self._held_gpus += run.gpus
        self._held_cores += run.held_cores
        touched = self._pacing.joined(run)
        if run.started_s is None:
            run.started_s = now_s
            self._repace((run,))
        else:
            self._push(now_s + self._setting.costs.of(run.gpus), Event.RESTARTED, run)
        if touched:
            self._repace(other for other in self._pacing.neighbours(touched) if other is not run and other.pace)
            self._watch(touched)
        if self._allocator and run.gpus and run.attempt == 1:
            self._allocator.begin(run, self._cluster.growth(run))
            self._push(now_s + self._setting.config.tuning.window_s, Event.WINDOW, run)

    def _tune(self, run: Running) -> None:
        """A window is over: the job gets the cores its search wants next, and another window if it goes on."""
        assert self._allocator is not None
        cores = self._allocator.measured(run, self._cluster.growth(run))
        if cores != run.cores:
            self._resize(run, cores)
        if self._allocator.is_searching(run):
            self._push(self._now_s + self._setting.config.tuning.window_s, Event.WINDOW, run)

    def _resize(self, run: Running, cores: int) -> None:
        run.advance(self._now_s)
        self._entries[run.job.id].pieces.append(self._piece(run))
        self._may_start |= cores < run.cores
        self._held_cores += (cores - run.cores) * run.gang.replicas
        self._cluster.resize(run, cores)
        self._begin_piece(run)
        self._repace((run,))

    def _begin_piece(self, run: Running) -> None:
        run.piece_from_s = self._now_s
        run.piece_done_s = run.busy_gpu_s = 0.0

    def _repace(self, runs: Iterable[Running]) -> None:
        """Count what was done at the old pace, take the new one, and foretell the end again where it changed."""
        for run in runs:
            pace, busy_gpus = run.pace, run.busy_gpus
            run.advance(self._now_s)
            self._pacing.set_pace(run)
            if run.pace != pace:
                run.version += 1
                self._push(run.end_s(self._now_s), Event.END, run)
                self._useful_gpus += (run.pace - pace) * run.gpus
            self._busy_gpus += run.busy_gpus - busy_gpus

    def _end(self, run: Running) -> None:
        entry = self._entries[run.job.id]
        run.advance(self._now_s)
        if self._allocator and run.traits.profile:
            entry.tuning_steps = self._allocator.ended(run, run.traits.profile)
        self._leave(run, entry)
        entry.end_s = self._now_s

    def _leave(self, run: Running, entry: Entry) -> None:
        """It has its nodes no more."""
        entry.pieces.append(self._piece(run))
        self._held_gpus -= run.gpus
        self._held_cores -= run.held_cores
        self._useful_gpus -= run.pace * run.gpus
        self._busy_gpus -= run.busy_gpus
        entry.victim_s = run.victim_s
        run.pace = run.busy_gpus = 0.0
        run.version += 1
        touched = self._pacing.left(run)
        self._cluster.stop(run)
        if touched:
            self._repace(other for other in self._pacing.neighbours(touched) if other.pace)
        if not self._held_gpus:
            self._useful_gpus = self._busy_gpus = 0.0  # what rounding left
        self._may_start = True

    def _piece(self, run: Running) -> Piece:
        return Piece(
            start_s=run.piece_from_s,
            end_s=self._now_s,
            attempt=run.attempt,
            nodes=run.nodes,
            cores=run.cores,
            work_s=run.piece_done_s,
            busy_gpu_s=run.busy_gpu_s,
            kept=True,
        )

    def _note(self) -> None:
        self._trail.note(
            self._now_s,
            (self._held_gpus, self._held_cores),
            self._busy_gpus,
            self._useful_gpus,
            self._idling.jobs,
            self._idling.lacking_cores(),
        )

    def _refuse_the_rest(self) -> None:
        if not self._cluster.waiting:
            return
        world = self._cluster.world()
        plan = self._decide(world, self._setting.config, self._now_s, self._memory, explain=None)
        for refusal in plan.refusals:
            self._entries[refusal.job].refusal = f"{refusal.code.value}: {refusal.message}"
            self._cluster.forget(self._cluster.waiting[refusal.job])
