"""Windows of the ranks here that an agent elsewhere tunes, one after the other, and what is reported of them.

The pod says all that is needed: its job, attempt and rank, that its cores are to be found, and how many it has. So the
job itself is never asked for."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from itertools import count
from typing import Final

from coda.allocator import CoreSearchConfig
from coda.allocator.ranks import MOST_CORES, RankReport
from coda_agent.cluster import LocalPod
from coda_agent.tuning.observation import RankWindow, TuningObservation

FIRST_NUMBERS: Final = 1 << 30
"""An agent that starts again numbers its windows from a random one below: surely not from the last one known."""


class RankWindows:
    """The windows of this node's ranks that are not rank 0, by pod uid. They are lost with the process."""

    def __init__(self, config: CoreSearchConfig, settle_s: float) -> None:
        self._config = config
        self._settle_s = settle_s
        self._by_pod: dict[str, RankWindow] = {}
        self._reports: dict[str, RankReport] = {}
        self._numbers = count(random.randrange(FIRST_NUMBERS))

    @property
    def reports(self) -> tuple[RankReport, ...]:
        """The last window of each rank at the cores that it has now."""
        return tuple(self._reports.values())

    @property
    def other_cores(self) -> Mapping[str, float]:
        """By pod uid: the cores that the kernel allowed, where this window or the last one does not count for them."""
        of = {uid: window.last_other_cores for uid, window in self._by_pod.items()}
        return {uid: cores for uid, cores in of.items() if cores is not None}

    def forget_all_except(self, pod_uids: Collection[str]) -> None:
        """Keep only the windows and reports of these pods."""
        self._by_pod = {uid: window for uid, window in self._by_pod.items() if uid in pod_uids}
        self._reports = {uid: report for uid, report in self._reports.items() if uid in pod_uids}

    def step(self, pod: LocalPod, seen: TuningObservation) -> None:
        """Add what this round saw of the pod, which is a rank; a window that is over becomes its report.

        A rank of less than a core, or of unknown cores, has none: no count that can be tried is its own."""
        member = pod.member
        assert member is not None
        if not 1 <= pod.cores <= MOST_CORES:
            self._by_pod.pop(pod.uid, None)
            self._reports.pop(pod.uid, None)
            return
        conditions = member.attempt, pod.cores, seen.container
        window = self._by_pod.get(pod.uid)
        if window is None or window.conditions != conditions:
            self._reports.pop(pod.uid, None)  # of other cores: whoever reads it may think of the present ones
            self._by_pod[pod.uid] = RankWindow(conditions, seen.at_s + self._settle_s, changed=True)
            return
        window.look(seen, pod.cores, self._config.window_s)
        if seen.at_s - window.began_s < self._config.window_s:
            return
        self._reports[pod.uid] = RankReport(
            job_uid=member.job_uid,
            attempt=member.attempt,
            rank=member.rank,
            cores=pod.cores,
            window=next(self._numbers),
            result=window.result(self._config),
        )
        self._by_pod[pod.uid] = window.next(seen.at_s, self._settle_s)
