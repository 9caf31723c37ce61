"""The event loop: a heap of (time, sequence, event), and nothing about scheduling.

At each moment all that happens then is applied first; then, if a job waits and anything changed that could let it
start, `decide` is asked, the planner's own, and what it says is done: who must stop for another stops, and `decide` is
asked again at the same moment. Equal jobs in any order give the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from coda.cache.world_index import PlannerCache
from coda.cycle.decide import decide
from coda.model.decision import Decision, Stop, StopCause
from coda.model.job import JobId
from coda.model.world import World
from coda.policy.config import PolicyConfig
from coda.policy.cores import starting_cores
from coda_sim.engine.allocator_model import AllocatorModel
from coda_sim.engine.cluster import Cluster
from coda_sim.engine.contention_model import NodeContention
from coda_sim.engine.event_queue import Event, EventQueue
from coda_sim.engine.job_run import JobRun
from coda_sim.engine.log import JobEntry, RunLog
from coda_sim.engine.pace import PaceModel
from coda_sim.engine.simulation_config import SimulationConfig
from coda_sim.engine.spare_cores import SpareCores, best_of
from coda_sim.engine.usage_trail import UsageTrail
from coda_sim.workload.gangs import Gang
from coda_sim.workload.job_models import JobModelDraws
from coda_sim.workload.virtual_clusters import virtual_clusters

TELL_EVERY = 500  # moments between two reports of progress


class Decide(Protocol):
    """The planner's `decide`, or one that watches it."""

    def __call__(
        self, world: World, config: PolicyConfig, now_s: float, cache: PlannerCache | None, *, explain: int | None
    ) -> Decision:
        """As `coda.cycle.decide.decide`."""


class Simulation:
    """One workload under one policy. Use once."""

    def __init__(
        self, setting: SimulationConfig, gangs: Sequence[Gang], traits: JobModelDraws, *, decide: Decide = decide
    ) -> None:
        self._setting = setting
        self._decide = decide
        self._cluster = Cluster(setting.shape, virtual_clusters(gangs, setting.shape.gpus))
        self._pacing = PaceModel(self._cluster, setting.profiles)
        self._tally = UsageTrail(self._cluster)
        self._allocator = AllocatorModel(setting.tuning, setting.shape) if setting.allocator else None
        self._memory = PlannerCache()
        self._agenda = EventQueue()
        self._watching = NodeContention(setting.contention, self._cluster, self._pacing, self._agenda)
        self._loans = SpareCores(self._cluster) if setting.lends_spare_cores else None
        self._gangs = iter(sorted(gangs, key=lambda gang: (gang.row.submit_s, gang.row.job_id)))
        self._traits = traits
        self._entries: dict[JobId, JobEntry] = {}
        self._now_s = 0.0
        self._may_start = False  # something changed since the last round that could let a job start, or grow
        self._rounds = 0
        self._wake_s = 0.0  # when the planner is asked again, whatever happens

    def run(self, tell: Callable[[float, int], None] | None = None) -> RunLog:
        """Everything from the first submission to the last end. `tell`: virtual time and jobs that ended, now and then.

        Jobs that still wait when nothing runs any more never start: they are refused, with the planner's reason."""
        self._next_submission()
        moments = ended = 0
        while (now_s := self._agenda.next_s) is not None:
            self._now_s = now_s
            while self._agenda.next_s == now_s:
                ended += self._apply(*self._agenda.pop())
            while self._may_start and (self._cluster.waiting or self._cluster.wishing):
                self._round()
            self._may_start = False
            self._lend()
            self._tally.note(now_s)
            moments += 1
            if tell is not None and moments % TELL_EVERY == 0:
                tell(now_s, ended)
        self._refuse_the_rest()
        return RunLog(
            entries=tuple(self._entries.values()),
            trail=self._tally.trail,
            end_s=self._now_s,
            gpus=self._cluster.gpus,
            cores=self._cluster.cores,
            node_names=tuple(node.name for node in self._cluster.nodes),
            rounds=self._rounds,
            throttles=self._watching.throttles,
        )

    def _apply(self, event: Event, run: JobRun | None, version: int) -> bool:
        """True when a job ended."""
        if run is None:
            if event is Event.LOOK:
                self._repace(self._watching.look(version, self._now_s))
            else:
                self._may_start = True
        elif event is Event.SUBMIT:
            self._submit(run)
        elif event is Event.WINDOW:
            if version == run.attempt and run.nodes:
                self._tune(run)
        elif version == run.version:
            if event is Event.END:
                self._end(run)
                return True
            run.is_restarting = False
            self._repace((run,))
        return False

    def _next_submission(self) -> None:
        gang = next(self._gangs, None)
        if gang is not None:
            traits = self._traits.of(gang.row)
            self._agenda.plan(gang.row.submit_s, Event.SUBMIT, JobRun(gang, traits))

    def _submit(self, run: JobRun) -> None:
        self._next_submission()
        run.submit(self._starting_cores(run))
        self._entries[run.job.id] = JobEntry(gang=run.gang)
        self._wait(run)

    def _starting_cores(self, run: JobRun) -> int:
        gang, tuned = run.gang, 0
        if self._allocator and run.traits.profile:
            tuned = self._allocator.proposed_cores(gang, run.traits.profile)
        return starting_cores(
            self._setting.cores_rule,
            asked=gang.cpus_per_replica,
            gpus=gang.gpus_per_replica,
            tuned=tuned,
            best=best_of(run),
            nodes=self._cluster.nodes,
            reserved_per_gpu=self._setting.reserved_per_gpu,
        )

    def _wait(self, run: JobRun) -> None:
        self._cluster.enqueue(run)
        self._tally.waits(run)
        self._may_start = True

    def _round(self) -> None:
        self._rounds += 1
        self._may_start = False
        world = self._cluster.world()
        plan = self._decide(world, self._setting.config, self._now_s, self._memory, explain=0)
        for grant in plan.grants:
            self._grant(self._cluster.running[grant.job], grant.cores)
        for denial in plan.denials:
            self._deny(self._cluster.running[denial.job], denial.most_cores)
        for start in plan.starts:
            run = self._cluster.waiting[start.job]
            self._tally.waits_no_more(run)
            cost_s = self._setting.costs.of(run.gpus) if run.attempt else 0.0
            self._cluster.start(run, start, self._now_s, cost_s)
            self._begin(run, cost_s)
        for stop in plan.stops:
            self._stop(stop)
        if plan.wake_s is not None and not self._now_s < self._wake_s <= plan.wake_s:
            self._wake_s = plan.wake_s
            self._agenda.plan_wake(plan.wake_s)

    def _stop(self, stop: Stop) -> None:
        """The job gives up its nodes and waits again, as `Stop` says."""
        run, entry = self._cluster.running[stop.job], self._entries[stop.job]
        run.advance(self._now_s)
        cores = self._allocator.stopped(run) if self._allocator else run.cores
        self._leave(run, entry)
        entry.count(stop.cause)
        if stop.cause is StopCause.RECLAIM and not self._setting.costs.cpu_jobs_resume:
            entry.throw_away()
            run.done_s = 0.0
        run.wait_again(stop.cause, cores, self._now_s)
        self._wait(run)

    def _begin(self, run: JobRun, cost_s: float) -> None:
        """It has its nodes: a piece begins. `cost_s`: until it does anything."""
        now_s = self._now_s
        run.since_s, run.limit, run.is_restarting = now_s, 1.0, cost_s > 0
        run.begin_piece(now_s)
        self._tally.holds(run, +1)
        if self._loans:
            self._loans.changed(run)
        touched = self._pacing.joined(run)
        if run.is_restarting:
            self._agenda.plan(now_s + cost_s, Event.RESTARTED, run)
        self._repace((run,))
        if touched:
            self._repace(other for other in self._pacing.neighbours(touched) if other is not run)
            self._watching.watch(touched, self._now_s)
        if self._allocator and run.gpus and self._allocator.begin(run, self._cluster.most_cores(run)):
            self._agenda.plan(now_s + cost_s + self._setting.tuning.window_s, Event.WINDOW, run)

    def _tune(self, run: JobRun) -> None:
        """A window is over: the job wishes for the cores that its search wants next."""
        assert self._allocator is not None
        self._want(run, self._allocator.measured(run, self._cluster.most_cores(run)))

    def _want(self, run: JobRun, cores: int) -> None:
        """Ask the planner for other cores than the job has; with those it has, the next window begins."""
        if cores != run.cores:
            self._cluster.wish(run, cores, self._now_s)
            self._may_start = True
        elif self._allocator and self._allocator.is_searching(run):
            self._agenda.plan(self._now_s + self._setting.tuning.window_s, Event.WINDOW, run)

    def _grant(self, run: JobRun, cores: int) -> None:
        self._resize(run, cores)
        self._want(run, cores)

    def _deny(self, run: JobRun, most_cores: int) -> None:
        assert self._allocator is not None
        self._cluster.deny(run)
        self._want(run, self._allocator.refused(run, most_cores))

    def _lend(self) -> None:
        """Spare cores go to the jobs that gain by them, and are taken back, after whatever happened in this moment."""
        for run, cores in self._loans.changes() if self._loans else ():
            self._resize(run, cores, own=False)

    def _resize(self, run: JobRun, cores: int, *, own: bool = True) -> None:
        """Other cores from now on: its own, which the planner counts with, or lent ones."""
        run.advance(self._now_s)
        self._entries[run.job.id].pieces.append(run.piece(self._now_s))
        self._may_start |= own and cores < run.cores
        self._tally.holds(run, -1)
        self._cluster.resize(run, cores, own=own)
        self._tally.holds(run, +1)
        run.begin_piece(self._now_s)
        self._repace((run,))

    def _repace(self, runs: Iterable[JobRun]) -> None:
        """Count what was done at the old pace, take the new one, and foretell the end again where it changed."""
        for run in runs:
            if run.is_restarting:
                continue
            pace, busy_gpus = run.pace, run.busy_gpus
            run.advance(self._now_s)
            self._pacing.set_pace(run)
            if run.pace != pace:
                run.version += 1
                self._agenda.plan(run.end_s(self._now_s), Event.END, run)
            self._tally.goes(run, run.busy_gpus - busy_gpus, run.pace - pace)

    def _end(self, run: JobRun) -> None:
        entry = self._entries[run.job.id]
        run.advance(self._now_s)
        if self._allocator and run.traits.profile:
            entry.tuning_steps = self._allocator.ended(run, run.traits.profile)
        self._leave(run, entry)
        entry.end_s = self._now_s

    def _leave(self, run: JobRun, entry: JobEntry) -> None:
        """It has its nodes no more."""
        entry.pieces.append(run.piece(self._now_s))
        entry.victim_s = run.victim_s
        self._tally.holds(run, -1)
        self._tally.goes(run, -run.busy_gpus, -run.pace)
        run.pace = run.busy_gpus = 0.0
        run.version += 1
        touched = self._pacing.left(run)
        if self._loans:
            self._loans.changed(run)
        self._cluster.stop(run)
        if touched:
            self._repace(self._pacing.neighbours(touched))
        self._may_start = True

    def _refuse_the_rest(self) -> None:
        if not self._cluster.waiting:
            return
        world = self._cluster.world()
        plan = self._decide(world, self._setting.config, self._now_s, self._memory, explain=None)
        for refusal in plan.refusals:
            self._entries[refusal.job].refusal = f"{refusal.code.value}: {refusal.message}"
            self._cluster.forget(self._cluster.waiting[refusal.job])
