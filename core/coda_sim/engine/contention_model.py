"""The contention eliminator inside a simulation: one per node, called while bandwidth could hurt a job.

The decisions are the core's (`coda.contention.eliminator`). Bandwidth is limited as hardware does it (MBA), in steps of
a tenth. A limited job wants that share of its bandwidth and runs at that share of its pace (our assumption: memory
bandwidth is its bottleneck). A node is one socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coda.contention.config import ContentionConfig
from coda.contention.eliminator import EliminatorState, Window, observe
from coda.contention.reference import Reference, TrainingSample
from coda.contention.throttles import Hardware, PodSample, ThrottleReason, percent_limits
from coda.model.job import JobId
from coda_sim.engine.cluster import Cluster
from coda_sim.engine.event_queue import EventQueue
from coda_sim.engine.job_run import JobRun
from coda_sim.engine.pace import PaceModel

_SOCKET: Final = 0
_LIMITS: Final = percent_limits(10, 10)


class ContentionModel:
    """The eliminator's state of every node, and the limits in force."""

    def __init__(self, config: ContentionConfig, peak_bytes_per_s: float) -> None:
        self.config = config
        self.throttles = 0  # actions that took bandwidth away
        self._hardware = Hardware(peak_bytes_per_s={_SOCKET: peak_bytes_per_s}, limits={_SOCKET: _LIMITS})
        self._state_by_node: dict[int, EliminatorState] = {}
        self._watched: dict[int, float] = {}  # node -> since when

    def is_watched(self, number: int) -> bool:
        """True if the windows of this node are observed."""
        return number in self._watched

    def watch(self, number: int, now_s: float) -> None:
        """Observe its windows from now on."""
        self._watched[number] = now_s

    def unwatch_if_calm(self, number: int, share: float) -> bool:
        """Stop observing the node and return True, if nothing is throttled there and nothing would be."""
        if share >= self.config.trigger_share or self._state_by_node[number].throttles:
            return False
        del self._watched[number]
        return True

    def limits(
        self, number: int, now_s: float, share: float, runs: Iterable[JobRun], undisturbed: Mapping[JobId, float]
    ) -> dict[JobId, float]:
        """Observe one window; return the share of its bandwidth that each CPU job of the node may have, by job id.

        `undisturbed`: the utilisation of each GPU job of the node without contention, by job id."""
        runs = list(runs)
        jobs = [run for run in runs if run.gpus]
        pods = [
            PodSample(uid=run.job.id, bytes_per_s={_SOCKET: float(run.bandwidth_bytes_per_s)}, cores=float(run.cores))
            for run in runs
            if not run.gpus
        ]
        window = Window(
            at_s=now_s,
            share_by_socket={_SOCKET: share},
            pods=pods,
            jobs=[
                TrainingSample(
                    job=run.job.id,
                    sockets=frozenset({_SOCKET}),
                    cores=run.cores,
                    share=min(1.0, run.busy_gpus / run.gpus),
                )
                for run in jobs
            ],
        )
        before = self._state_by_node.get(number, EliminatorState())
        state = EliminatorState(
            at_s=before.at_s,
            references=self._references(number, before, jobs, undisturbed),
            sockets=before.sockets,
            throttles=before.throttles,
        )
        state, actions = observe(state, window, self._hardware, self.config)
        self._state_by_node[number] = state
        self.throttles += sum(action.reason is ThrottleReason.CONTENDED for action in actions)
        held = {uid: throttle.value / _LIMITS[0] for throttle in state.throttles for uid in throttle.pods}
        return {run.job.id: held.get(run.job.id, 1.0) for run in runs if not run.gpus}

    def _references(
        self, number: int, state: EliminatorState, jobs: list[JobRun], undisturbed: Mapping[JobId, float]
    ) -> tuple[Reference, ...]:
        """Add the references of jobs that ran long enough before the node was watched.

        Their utilisation was constant, so windows at that time would have given exactly this reference."""
        calm_s = self.config.learn_windows * self.config.window_s
        known = {reference.job: reference for reference in state.references}
        for run in jobs:
            reference = known.get(run.job.id)
            is_known = reference is not None and reference.cores == run.cores
            if not is_known and self._watched[number] - run.piece_from_s >= calm_s:
                known[run.job.id] = Reference(
                    job=run.job.id,
                    cores=run.cores,
                    share=undisturbed[run.job.id],
                    learned=self.config.learn_windows,
                )
        return tuple(known[name] for name in sorted(known))


class NodeContention:
    """The eliminator on a whole cluster; without a configuration it does nothing."""

    def __init__(self, config: ContentionConfig | None, cluster: Cluster, paces: PaceModel, events: EventQueue) -> None:
        self._eliminator = ContentionModel(config, paces.peak_bytes_per_s) if config else None
        self._cluster = cluster
        self._paces = paces
        self._events = events

    @property
    def throttles(self) -> int:
        """The number of actions so far that took bandwidth away."""
        return self._eliminator.throttles if self._eliminator else 0

    def watch(self, numbers: Iterable[int], now_s: float) -> None:
        """Observe the windows of these nodes while the wanted share of their bandwidth reaches the trigger."""
        eliminator = self._eliminator
        if eliminator is None:
            return
        for number in sorted(numbers):
            is_contended = self._paces.share(number) >= eliminator.config.trigger_share
            if is_contended and not eliminator.is_watched(number):
                eliminator.watch(number, now_s)
                self._events.add_node_window(now_s + eliminator.config.window_s, number)

    def observe_window(self, number: int, now_s: float) -> list[JobRun]:
        """Apply the eliminator's limits after a window of the node. Returns the jobs whose pace may have changed."""
        eliminator = self._eliminator
        assert eliminator is not None
        runs = list(self._cluster.on_node[number].values())
        undisturbed = {run.job.id: self._paces.undisturbed_utilisation(run) for run in runs if run.gpus}
        limits = eliminator.limits(number, now_s, self._paces.share(number), runs, undisturbed)
        found: dict[int, JobRun] = {}
        for run in runs:
            if not run.gpus and limits[run.job.id] != run.limit:
                touched = self._paces.remove_bandwidth(run)
                run.limit = limits[run.job.id]
                touched |= self._paces.add_bandwidth(run)
                found.update((id(one), one) for one in (run, *self._paces.neighbours(touched)))
        if not eliminator.unwatch_if_calm(number, self._paces.share(number)):
            self._events.add_node_window(now_s + eliminator.config.window_s, number)
        return list(found.values())
