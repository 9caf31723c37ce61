"""The event loop of a simulation. It decides nothing about scheduling.

For each time: apply all events. If a waiting job might start now, call the planner's `decide` and carry out the result.
If it stopped jobs, call it again at the same time. The order of equal jobs in the input does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coda.allocator.config import TuningConfig
from coda.cache.world_index import PlannerCache
from coda.cycle.decide import decide
from coda.history.division import FollowedPast
from coda.history.run_times import FinishedRun
from coda.model.decision import Stop
from coda.model.job import JobId
from coda.policy.cores import CoresRule, proportional_share, starting_cores
from coda.policy.policies import policy_of
from coda.promises import PromiseBook
from coda_sim.engine.allocator_model import AllocatorModel
from coda_sim.engine.cluster import Cluster
from coda_sim.engine.contention_model import NodeContention
from coda_sim.engine.event_queue import Event, EventQueue
from coda_sim.engine.job_run import JobRun
from coda_sim.engine.log import DelayBook, JobEntry, Restart, RunLog
from coda_sim.engine.pace import PaceModel
from coda_sim.engine.simulation_config import Decide, SimulationConfig
from coda_sim.engine.spare_cores import SpareCores, best_of
from coda_sim.engine.usage_recorder import UsageRecorder
from coda_sim.workload.gangs import Gang
from coda_sim.workload.job_models import JobModelDraws
from coda_sim.workload.virtual_clusters import virtual_clusters

WISH_AGAIN_S: Final = TuningConfig().wish_again_s
_OF_CORES: Final = (Event.TUNING_WINDOW, Event.WISH_AGAIN, Event.PROFILED, Event.RESIZED)
PROGRESS_EVERY = 500  # simulated times between two reports of progress


class Simulation:
    """One workload under one policy. Use once."""

    def __init__(
        self, config: SimulationConfig, gangs: Sequence[Gang], models: JobModelDraws, *, decide: Decide = decide
    ) -> None:
        self._config = config
        self._decide = decide
        has_none = not config.virtual_clusters and policy_of(config.planner.policy).counts_quotas  # no trace has quotas
        tenants = virtual_clusters(gangs, config.shape.gpus) if has_none else config.virtual_clusters
        self._cluster = Cluster(config.shape, tenants, save_every_s=config.costs.save_every_s)
        self._paces = PaceModel(self._cluster, config.profiles)
        self._usage = UsageRecorder(self._cluster)
        self._allocator = AllocatorModel(config.tuning, config.shape, config.inaccuracy) if config.allocator else None
        self._cache = PlannerCache()
        self._book = PromiseBook()
        self._events = EventQueue()
        self._contention = NodeContention(config.contention, self._cluster, self._paces, self._events)
        self._spare_cores = SpareCores(self._cluster) if config.lends_spare_cores else None
        self._delays = DelayBook(is_on=config.books_delays)
        self._past = FollowedPast(config.shares) if config.divides_from_history else None
        self._gangs = iter(sorted(gangs, key=lambda gang: (gang.row.submit_s, gang.row.job_id)))
        self._models = models
        self._entries: dict[JobId, JobEntry] = {}
        self._shrinks: dict[JobId, tuple[JobRun, int]] = {}  # wishes for fewer cores that no cycle has seen
        self._now_s = 0.0
        self._may_start = False  # since the last cycle, something changed that could let a job start or grow
        self._cycles = 0
        self._wake_s = 0.0  # the time of the next cycle that the planner asked for

    def run(self, on_progress: Callable[[float, int], None] | None = None) -> RunLog:
        """Simulate from the first submission to the last end.

        `on_progress` is sometimes called with the virtual time and the number of jobs that ended. Jobs that still wait
        when nothing runs any more never start: they are refused, with the planner's reason."""
        self._next_submission()
        times = ended = 0
        while (now_s := self._events.next_s) is not None:
            self._now_s = now_s
            while self._events.next_s == now_s:
                ended += self._apply(*self._events.pop())
            self._divide()
            self._run_cycles()
            self._lend()
            self._usage.record(now_s)
            times += 1
            if on_progress is not None and times % PROGRESS_EVERY == 0:
                on_progress(now_s, ended)
        self._refuse_waiting()
        return RunLog(
            entries=tuple(self._entries.values()),
            trail=self._usage.trail,
            end_s=self._now_s,
            gpus=self._cluster.gpus,
            cores=self._cluster.cores,
            node_names=tuple(node.name for node in self._cluster.nodes),
            cycles=self._cycles,
            throttles=self._contention.throttles,
            promised_gpu_s=self._book.spent_gpu_s,
            promised_most_gpu_s=self._book.most_spent_gpu_s,
        )

    def _apply(self, event: Event, run: JobRun | None, version: int) -> bool:
        """Apply an event; True if a job ended."""
        if run is None:
            if event is Event.NODE_WINDOW:
                self._repace(self._contention.observe_window(version, self._now_s))
            else:
                self._may_start = True
        elif event is Event.SUBMIT:
            self._submit(run)
        elif event in _OF_CORES:
            if run.nodes:
                self._apply_to_cores(event, run, version)
        elif version == run.version:
            if event is Event.END:
                self._end(run)
                return True
            run.is_restarting = False
            self._repace((run,))
        return False

    def _apply_to_cores(self, event: Event, run: JobRun, version: int) -> None:
        """Apply an event about the cores of a running job, unless it is void."""
        if event is Event.RESIZED:
            if version == run.resizes:
                run.working_cores = run.cores
                self._repace((run,))
        elif version == run.attempt:
            if event is Event.TUNING_WINDOW:
                self._tune(run)
            elif event is Event.WISH_AGAIN:
                self._wish_again(run)
            else:
                self._profile(run)

    def _next_submission(self) -> None:
        gang = next(self._gangs, None)
        if gang is not None:
            model = self._models.of(gang.row)
            told_factor = self._config.inaccuracy.run_time_factor(gang.row.job_id)
            self._events.add(gang.row.submit_s, Event.SUBMIT, JobRun(gang, model, told_factor))

    def _submit(self, run: JobRun) -> None:
        self._next_submission()
        run.is_profiled = not (run.gpus and self._config.profiling_s)
        is_resumable = self._config.costs.resumes(run.gang.row.job_id, run.gpus)
        is_tunable = bool(self._allocator and run.gpus and run.model.profile)
        run.submit(self._starting_cores(run), is_resumable=is_resumable, is_tunable=is_tunable)
        self._entries[run.job.id] = JobEntry(gang=run.gang)
        self._wait(run)

    def _starting_cores(self, run: JobRun) -> int:
        gang, tuned = run.gang, 0
        if self._allocator and run.model.profile:
            tuned = self._allocator.proposed_cores(gang, run.model.profile)
        return starting_cores(
            self._config.cores_rule,
            asked=gang.cpus_per_replica,
            gpus=gang.gpus_per_replica,
            tuned=tuned,
            best=best_of(run) if run.is_profiled else 0,
            nodes=self._cluster.node_types,
            reserved_per_gpu=self._config.reserved_per_gpu,
        )

    def _wait(self, run: JobRun) -> None:
        self._cluster.enqueue(run)
        self._usage.add_waiting(run)
        self._delays.wait(run.job.id, self._entries[run.job.id], self._now_s)
        self._may_start = True

    def _run_cycles(self) -> None:
        """Run cycles until nothing that happened at this time can let a job start or change its cores.

        A wish for fewer cores is always granted. If there is nothing else to decide, no cycle is run for it: it would
        only grant, in this order. The cores that become free are for the next cycle, as they are with one."""
        while self._may_start or self._shrinks:
            if self._may_start and (self._cluster.waiting or self._cluster.wishing):
                self._run_cycle()
            elif self._shrinks:
                shrinks, self._shrinks = self._shrinks, {}
                for job in sorted(shrinks):
                    self._grant(*shrinks[job])
            else:
                break
        self._may_start = False

    def _run_cycle(self) -> None:
        self._cycles += 1
        self._may_start = False
        for run, cores in self._shrinks.values():
            self._cluster.add_wish(run, cores, self._now_s)
        self._shrinks.clear()
        world = self._cluster.world(self._now_s)
        explain = self._delays.explain
        decision = self._decide(world, self._config.planner, self._now_s, self._cache, book=self._book, explain=explain)
        for grant in decision.grants:
            self._grant(self._cluster.running[grant.job], grant.cores)
        for denial in decision.denials:
            self._deny(self._cluster.running[denial.job], denial.most_cores)
        for start in decision.starts:
            run = self._cluster.waiting[start.job]
            self._usage.remove_waiting(run)
            cost_s = self._config.costs.of(run.gpus) if run.attempt else 0.0
            self._cluster.start(run, start, self._now_s)
            self._begin(run, cost_s)
        for stop in decision.stops:
            self._stop(stop)
        for grant in decision.returns:
            self._take_back(self._cluster.running[grant.job], grant.cores)
        self._delays.book(decision.refusals, self._now_s)
        if decision.wake_s is not None and not self._now_s < self._wake_s <= decision.wake_s:
            self._wake_s = decision.wake_s
            self._events.add_wake(decision.wake_s)

    def _stop(self, stop: Stop) -> None:
        """Stop a job and requeue it, as `Stop` says."""
        run, entry = self._cluster.running[stop.job], self._entries[stop.job]
        lost_s = run.unsaved_s(self._config.costs.save_every_s, self._now_s)
        cores = self._allocator.end_attempt(run) if self._allocator else run.cores
        self._leave(run, entry)
        entry.count_stop(stop.cause)
        entry.discard_work(lost_s)
        run.done_s = max(0.0, run.done_s - lost_s)
        reclaimed = self._cluster.times_reclaimed(run.job, stop.cause, self._now_s, self._config.planner.reclaim)
        restart_s = self._config.costs.of(run.gpus)
        run.requeue(stop.cause, cores, self._now_s, restart_s=restart_s, reclaimed=reclaimed)
        self._wait(run)

    def _begin(self, run: JobRun, cost_s: float) -> None:
        """Begin the work of a job that has its nodes. `cost_s`: seconds before it does anything."""
        now_s = self._now_s
        run.since_s, run.limit, run.is_restarting = now_s, 1.0, cost_s > 0
        run.begin_piece(now_s)
        self._delays.start(run.job.id, now_s)
        self._usage.add_holding(run)
        if self._spare_cores:
            self._spare_cores.mark_nodes(run)
        touched = self._paces.add_bandwidth(run)
        if run.is_restarting:
            self._events.add(now_s + cost_s, Event.RESTARTED, run)
            restart = Restart(start_s=now_s, end_s=now_s + cost_s, cores=run.held_cores)
            self._entries[run.job.id].restarts.append(restart)
        self._repace((run,))
        if touched:
            self._repace(other for other in self._paces.neighbours(touched) if other is not run)
            self._contention.watch(touched, self._now_s)
        if self._allocator and run.gpus and self._allocator.begin(run, self._cluster.most_cores(run)):
            self._events.add(now_s + cost_s + self._config.tuning.window_s, Event.TUNING_WINDOW, run)
        if not run.is_profiled:
            self._events.add(now_s + cost_s + self._config.profiling_s, Event.PROFILED, run)
        if run.gpus and self._config.cores_rule is CoresRule.PROPORTIONAL:
            nodes = (self._cluster.nodes[number] for number, _ in run.nodes)
            share = proportional_share(run.gang.gpus_per_replica, nodes)
            self._want(run, max(run.cores, share))

    def _profile(self, run: JobRun) -> None:
        """The job's best cores are known: give back what it cannot use, and let it be lent what it can."""
        assert self._spare_cores is not None
        run.is_profiled = True
        self._spare_cores.mark_nodes(run)
        self._want(run, min(run.cores, best_of(run)))

    def _tune(self, run: JobRun) -> None:
        """After a window: wish for the cores that the job's search wants next."""
        assert self._allocator is not None
        wanted, run.due_cores = run.due_cores, 0  # if cores were taken back within the window, it counts for nothing
        self._want(run, wanted or self._allocator.after_window(run, self._cluster.most_cores(run)))

    def _want(self, run: JobRun, cores: int) -> None:
        """Wish for other cores than the job has; if it has them, begin the next window."""
        if cores < run.cores:
            self._shrinks[run.job.id] = (run, cores)
        elif cores > run.cores:
            self._cluster.add_wish(run, cores, self._now_s)
            self._may_start = True
        elif self._allocator and self._allocator.is_searching(run):
            resize_s = self._config.costs.resize_s if run.working_cores < run.cores else 0.0
            self._events.add(self._now_s + resize_s + self._config.tuning.window_s, Event.TUNING_WINDOW, run)

    def _grant(self, run: JobRun, cores: int) -> None:
        self._resize(run, cores)
        self._want(run, cores)

    def _take_back(self, run: JobRun, cores: int) -> None:
        """Take cores back from a job. A search finds them gone at the end of its window; else it asks again later."""
        assert self._allocator is not None
        is_known, run.due_cores = run.due_cores > 0, max(run.due_cores, run.cores)
        self._resize(run, cores)
        if not is_known and not self._allocator.is_searching(run):
            self._events.add(self._now_s + WISH_AGAIN_S, Event.WISH_AGAIN, run)

    def _wish_again(self, run: JobRun) -> None:
        """Wish for the cores that were taken back, and go on wishing until it has them."""
        if run.cores >= run.due_cores:
            run.due_cores = 0
            return
        self._events.add(self._now_s + WISH_AGAIN_S, Event.WISH_AGAIN, run)
        self._want(run, run.due_cores)

    def _deny(self, run: JobRun, most_cores: int) -> None:
        self._cluster.remove_wish(run)
        if self._allocator is None:
            self._want(run, max(run.cores, most_cores))
        else:
            self._want(run, self._allocator.after_denial(run, most_cores))

    def _divide(self) -> None:
        """Divide the nodes as the past says, if that has changed."""
        if self._past and self._past.step(self._now_s):
            self._cluster.divide(self._past.shares)
            self._may_start = True

    def _lend(self) -> None:
        """Lend spare cores to the jobs that gain from them, and take them back, after all events of this time."""
        for run, cores in self._spare_cores.changes() if self._spare_cores else ():
            self._resize(run, cores, own=False)

    def _resize(self, run: JobRun, cores: int, *, own: bool = True) -> None:
        """Give a job other cores: its own, which the planner knows, or lent ones."""
        run.advance(self._now_s)
        self._entries[run.job.id].pieces.append(run.piece(self._now_s))
        self._may_start |= own and cores < run.cores
        self._usage.remove_holding(run)
        self._cluster.resize(run, cores, own=own)
        resize_s = self._config.costs.resize_s
        if run.set_working_cores(takes_time=resize_s > 0):
            self._events.add(self._now_s + resize_s, Event.RESIZED, run)
        self._usage.add_holding(run)
        run.begin_piece(self._now_s)
        self._repace((run,))

    def _repace(self, runs: Iterable[JobRun]) -> None:
        """Count the work done at the old pace, set the new one, and add a new end event if the pace changed."""
        for run in runs:
            if run.is_restarting:
                continue
            pace, busy_gpus = run.pace, run.busy_gpus
            run.advance(self._now_s)
            self._paces.set_pace(run)
            if run.pace != pace:
                run.version += 1
                self._events.add(run.end_s(self._now_s), Event.END, run)
            self._usage.change_pace(run, run.busy_gpus - busy_gpus, run.pace - pace)

    def _end(self, run: JobRun) -> None:
        entry = self._entries[run.job.id]
        run.advance(self._now_s)
        if self._allocator and run.model.profile:
            entry.tuning_steps = self._allocator.end_job(run, run.model.profile)
        job = run.job
        if job.placement is not None and not self._config.inaccuracy.forgets:
            run_s = (job.resumed_s + self._now_s - job.placement.committed_s) * run.told_factor
            self._book.run_times.add(FinishedRun(job.user, job.category, run.gpus, run_s))
        if self._past:
            run.teach(self._past, self._now_s)
        self._leave(run, entry)
        entry.end_s = self._now_s
        self._delays.end(run.job.id, self._now_s)

    def _leave(self, run: JobRun, entry: JobEntry) -> None:
        """Take a job off its nodes."""
        entry.pieces.append(run.piece(self._now_s))
        entry.victim_s, entry.victim_lost_s = run.victim_s, run.victim_lost_s
        entry.cut_restart(self._now_s)
        self._usage.remove_holding(run)
        self._usage.change_pace(run, -run.busy_gpus, -run.pace)
        run.pace = run.busy_gpus = run.lost_pace = 0.0
        run.version += 1
        touched = self._paces.remove_bandwidth(run)
        if self._spare_cores:
            self._spare_cores.mark_nodes(run)
        self._cluster.stop(run)
        self._shrinks.pop(run.job.id, None)
        if touched:
            self._repace(self._paces.neighbours(touched))
        self._may_start = True

    def _refuse_waiting(self) -> None:
        if not self._cluster.waiting:
            return
        world = self._cluster.world(self._now_s)
        decision = self._decide(world, self._config.planner, self._now_s, self._cache, book=self._book, explain=None)
        for refusal in decision.refusals:
            self._entries[refusal.job].refusal = f"{refusal.code.value}: {refusal.message}"
            self._cluster.remove_waiting(self._cluster.waiting[refusal.job])
