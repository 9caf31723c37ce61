"""What a planner remembers of fair shares from one decision to the next: for whom gangs stopped, and when.

The memory ends with its planner. Then an owner may have to ask again, and the budget of a minute begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from coda.model.decision import Stop
from coda.model.job import Job, JobId
from coda.model.resources import Resources
from coda.policy.config import FairShareConfig
from coda.policy.reclaim import WINDOW_S

CLAIM_S: Final = 120.0
"""For so long after their notice a job goes first for which gangs stopped, and after the last moment at which one of
them was leaving: some have more time to end. Our choice: twice the time that pods have by default, and more."""


class FairShareMemory:
    """Give one to every decision of one planner. To decide twice at one time changes nothing more."""

    def __init__(self) -> None:
        self._claims: dict[JobId, tuple[float, float]] = {}  # since when a job goes first, and for how long, in order
        self._stopped_s: dict[str, float] = {}  # by job and attempt: when it was told to stop

    def copied(self) -> FairShareMemory:
        """Return the same memory as an object of its own."""
        copied = FairShareMemory()
        copied._claims, copied._stopped_s = dict(self._claims), dict(self._stopped_s)
        return copied

    def note(self, by: JobId, stopped: Collection[str], now_s: float, *, notice_s: float = 0.0) -> None:
        """Gangs stop for this job. `stopped`: their keys, each unique. `notice_s`: their longest notice."""
        self._claims[by] = (now_s, CLAIM_S + notice_s)  # it keeps its place, and waits for those, too
        for key in stopped:
            self._stopped_s.setdefault(key, now_s)

    def keep(self, jobs: Iterable[Job], leaving: Mapping[str, Resources], now_s: float) -> None:
        """Let no claim end while a gang that stopped for it is leaving. O(jobs) if there are claims.

        `leaving`: by node, what stops will free, for as long as those who stop have to end."""
        if not self._claims or not leaving:
            return
        for job in jobs:
            order = job.placement.stop if job.placement is not None else None
            if order is None or job.placement is None or order.by not in self._claims:
                continue
            if any(leaving[node].gpus for node in job.placement.nodes if node in leaving):
                since_s, lasts_s = self._claims[order.by]
                self._claims[order.by] = (now_s, max(CLAIM_S, min(since_s, now_s) + lasts_s - now_s))

    def claims(self, waiting: Collection[JobId], now_s: float) -> list[JobId]:
        """Return the waiting jobs for which gangs stopped, the earliest first; forget all others."""
        if self._claims:
            self._claims = {
                job: (min(since_s, now_s), lasts_s)  # clocks step back, too
                for job, (since_s, lasts_s) in self._claims.items()
                if job in waiting and now_s - since_s < lasts_s
            }
        return list(self._claims)

    def next_stop_s(self, config: FairShareConfig, keys: Collection[str], now_s: float) -> float | None:
        """Return when the budget lets these gangs stop for one more job; None if it does now.

        What crosses the budget is done as a whole: half of what a gang needs would be in vain. `keys`: theirs; gangs
        that were told already do not count against themselves."""
        if self._stopped_s:
            self._stopped_s = {key: at_s for key, at_s in self._stopped_s.items() if at_s > now_s - WINDOW_S}
        limit, others = config.stops_per_minute, [at_s for key, at_s in self._stopped_s.items() if key not in keys]
        if not limit or len(others) < limit:
            return None
        return min(sorted(others)[-limit], now_s) + WINDOW_S


def key_of_stop(stop: Stop) -> str:
    """What tells a stopped attempt from all others."""
    return f"{stop.job}-{stop.attempt}"
