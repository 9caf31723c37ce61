"""Breaches that only a history shows: (f), a rank started twice, and the rewriting half of (g). Fed with every change.

Nothing here needs a fresh list: each fact comes from one object's own ordered changes, and a second look cannot undo
it. A reason rewritten with the same content is invisible: the API server drops such a write.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from coda_lab.checker.objects import JobSeen, Member, PendingSeen, PodSeen
from coda_lab.checker.report import Breach, Invariant

Rank = tuple[int, int]
"""(attempt, rank)."""

HOT_GAP_S: Final = 1.0  # our choice: rewritten more often than this ...
HOT_FOR_S: Final = 10.0  # ... for longer than this is a hot loop, with any content


@dataclass(slots=True, kw_only=True)
class _Wait:
    """One stretch of waiting: same attempt, same spec, no placement in between."""

    key: tuple[int, int]  # attempt, generation
    pending: PendingSeen | None
    written_within: bool = False  # the reason was written in this stretch, not left from an earlier one
    written_s: float | None = None
    hot_since_s: float | None = None
    reported: bool = False


class History:
    """Remembers per job, while it exists, which pod started as which rank, and how its reason was rewritten."""

    def __init__(self) -> None:
        self.attempts = 0
        self.plans = 0
        self._started: defaultdict[str, dict[Rank, list[str]]] = defaultdict(dict)  # pod uids
        self._attempts: defaultdict[str, set[int]] = defaultdict(set)
        self._plan_ids: defaultdict[str, set[str]] = defaultdict(set)
        self._waits: dict[str, _Wait] = {}

    def see_pod(self, pod: PodSeen, now_s: float) -> Breach | None:
        """Take in one state of a pod; return a breach if it is the second one to start as its rank."""
        member = pod.member
        if member is None:
            return None
        if member.attempt is not None and member.attempt not in self._attempts[member.job_uid]:
            self._attempts[member.job_uid].add(member.attempt)
            self.attempts += 1
        if not pod.started or member.attempt is None or member.rank is None:
            return None
        uids = self._started[member.job_uid].setdefault((member.attempt, member.rank), [])
        if pod.uid in uids:
            return None
        uids.append(pod.uid)
        return _started_twice(pod, member, uids, now_s) if len(uids) > 1 else None

    def see_job(self, job: JobSeen, now_s: float, *, gap: bool = False) -> Breach | None:
        """Take in a state of a job; return a breach if its reason was rewritten for nothing. After a `gap`, compare
        nothing.
        """
        plan = job.plan
        if plan is not None and plan.released and plan.plan_id not in self._plan_ids[job.uid]:
            self._plan_ids[job.uid].add(plan.plan_id)
            self.plans += 1
        if not job.waiting:
            self._waits.pop(job.uid, None)
            return None
        key = (job.attempt, job.generation)
        wait = self._waits.get(job.uid)
        if wait is None or wait.key != key or gap:
            self._waits[job.uid] = _Wait(key=key, pending=job.pending)
            return None
        return _see_rewrite(wait, job, now_s)

    def forget_job(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._waits.pop(uid, None)
        self._started.pop(uid, None)
        self._attempts.pop(uid, None)
        self._plan_ids.pop(uid, None)


def _started_twice(pod: PodSeen, member: Member, uids: list[str], now_s: float) -> Breach:
    return Breach(
        invariant=Invariant.STARTED_TWICE,
        time_s=now_s,
        objects=(f"Pod/{pod.name}",),
        sentence=f"pod {pod.name}: rank {member.rank} of attempt {member.attempt} was started {len(uids)} times, "
        f"as pods {', '.join(uids)}",
    )


def _see_rewrite(wait: _Wait, job: JobSeen, now_s: float) -> Breach | None:
    before, after = wait.pending, job.pending
    if before == after:
        return None
    for_nothing = wait.written_within and before is not None and after is not None and before.answer == after.answer
    if wait.hot_since_s is None or wait.written_s is None or now_s - wait.written_s >= HOT_GAP_S:
        wait.hot_since_s = now_s
    wait.pending, wait.written_within, wait.written_s = after, True, now_s
    if for_nothing:
        return _rewritten(job, "again with only `since` changed", now_s)
    if now_s - wait.hot_since_s > HOT_FOR_S and not wait.reported:
        wait.reported = True
        return _rewritten(job, f"more often than every {HOT_GAP_S:g} s for over {HOT_FOR_S:g} s", now_s)
    return None


def _rewritten(job: JobSeen, how: str, now_s: float) -> Breach:
    return Breach(
        invariant=Invariant.WAITING_UNEXPLAINED,
        time_s=now_s,
        objects=(f"TrainingJob/{job.name}",),
        sentence=f"job {job.name}: status.pending was rewritten {how}",
    )
