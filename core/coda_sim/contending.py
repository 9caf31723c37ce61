"""The contention eliminator inside a simulation: one per node, fed with windows while bandwidth could hurt anybody.

What to do is the core's (`coda.contention`); here nodes meet it. Bandwidth is limited as hardware does it (MBA), in
steps of a tenth; a job so limited wants that part of its bandwidth and goes at that part of its pace (our assumption:
it is bound by its memory). A node is one socket. What must not live here: time, and the pace of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coda.baselines import Baseline, Training
from coda.config import ContentionConfig
from coda.contention import Contention, Window, observe
from coda.model import JobId
from coda.throttles import Hardware, Pod, Reason, percent_limits
from coda_sim.running import Running

_SOCKET: Final = 0
_LIMITS: Final = percent_limits(10, 10)


class Eliminator:
    """What is remembered of every node, and which limit stands where."""

    def __init__(self, config: ContentionConfig, peak_bytes_per_s: float) -> None:
        self.config = config
        self.throttles = 0  # actions that took bandwidth away
        self._hardware = Hardware(peak_bytes_per_s={_SOCKET: peak_bytes_per_s}, limits={_SOCKET: _LIMITS})
        self._state_by_node: dict[int, Contention] = {}
        self._watched: dict[int, float] = {}  # node -> since when

    def watches(self, number: int) -> bool:
        """Whether windows of this node are being observed."""
        return number in self._watched

    def watch(self, number: int, now_s: float) -> None:
        """Observe its windows from now on."""
        self._watched[number] = now_s

    def is_over(self, number: int, share: float) -> bool:
        """True, and the node is watched no more, when nothing is throttled there and nothing would be."""
        if share >= self.config.trigger_share or self._state_by_node[number].throttles:
            return False
        del self._watched[number]
        return True

    def limits(
        self, number: int, now_s: float, share: float, runs: Iterable[Running], undisturbed: Mapping[JobId, float]
    ) -> dict[JobId, float]:
        """One window: the share of its bandwidth that each CPU job of the node may have from now on, by job id.

        `undisturbed`: the utilisation of each GPU job of the node without contention, by job id."""
        runs = list(runs)
        jobs = [run for run in runs if run.gpus]
        pods = [
            Pod(uid=run.job.id, bytes_per_s={_SOCKET: float(run.bandwidth_bytes_per_s)}, cores=float(run.cores))
            for run in runs
            if not run.gpus
        ]
        window = Window(
            at_s=now_s,
            share_by_socket={_SOCKET: share},
            pods=pods,
            jobs=[
                Training(
                    job=run.job.id,
                    sockets=frozenset({_SOCKET}),
                    cores=run.cores,
                    share=min(1.0, run.busy_gpus / run.gpus),
                )
                for run in jobs
            ],
        )
        before = self._state_by_node.get(number, Contention())
        state = Contention(
            at_s=before.at_s,
            baselines=self._baselines(number, before, jobs, undisturbed),
            watches=before.watches,
            throttles=before.throttles,
        )
        state, actions = observe(state, window, self._hardware, self.config)
        self._state_by_node[number] = state
        self.throttles += sum(action.reason is Reason.CONTENDED for action in actions)
        held = {uid: throttle.value / _LIMITS[0] for throttle in state.throttles for uid in throttle.pods}
        return {run.job.id: held.get(run.job.id, 1.0) for run in runs if not run.gpus}

    def _baselines(
        self, number: int, state: Contention, jobs: list[Running], undisturbed: Mapping[JobId, float]
    ) -> tuple[Baseline, ...]:
        """With the references of jobs that ran long enough before the node was watched: that utilisation was constant,
        so windows then would have taught exactly it."""
        calm_s = self.config.learn_windows * self.config.window_s
        known = {baseline.job: baseline for baseline in state.baselines}
        for run in jobs:
            baseline = known.get(run.job.id)
            is_known = baseline is not None and baseline.cores == run.cores
            if not is_known and self._watched[number] - run.piece_from_s >= calm_s:
                known[run.job.id] = Baseline(
                    job=run.job.id,
                    cores=run.cores,
                    reference=undisturbed[run.job.id],
                    learned=self.config.learn_windows,
                )
        return tuple(known[name] for name in sorted(known))
