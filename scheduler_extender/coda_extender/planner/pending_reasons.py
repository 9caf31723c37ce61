"""Which wait reasons must be written to jobs, and how soon.

Due at once: a first reason, a new code, the answer to an edit, and the end of waiting. New numbers under the same code
are slow notices. On a busy cluster they change all the time, so they are rewritten at most every few seconds per job,
and at a limited rate for all jobs, which is lower while the API server is slow. "Not accepted yet" after an edit is
slow as well: the operator mostly accepts an edit within milliseconds, and the notice is for the case that it is away.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from coda.history.delay_causes import delay_cause
from coda.model import JobId, WaitCode
from coda.model.decision import HOPELESS, Refusal
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.objects.write import pending_json

PER_JOB_S: Final = 3.0  # between two rewrites of one job's numbers
PER_SECOND: Final = 50.0  # rewrites of numbers, of all jobs
LEAST_PER_SECOND: Final = 1.0
WRITING_SHARE: Final = 0.25  # of the time, one after the other: the rest of a slow API server is for other writes
BATCH: Final = 64
_ACCEPTED_WITHIN_S: Final = 1.0  # an edit, while the operator runs
_LONG_AGO_S: Final = float("-inf")
_LASTING: Final = frozenset([code.value for code in HOPELESS])
_OF_WRITES: Final = frozenset({WaitCode.STATUS_UNWRITABLE, WaitCode.STATUS_WRITE_SLOW, WaitCode.CHANGED_MEANWHILE})


class PendingNotice(NamedTuple):
    """A reason to write; without a `refusal`: the written reason is to be removed."""

    job: JobId
    refusal: Refusal | None
    urgent: bool


def notice_for(refusal: Refusal, job_json: Mapping[str, Any] | None) -> PendingNotice | None:
    """Return what must be written so that the object shows `refusal`; None if it does already."""
    if job_json is None:
        return None
    pending = (job_json.get("status") or {}).get("pending")
    reason = refusal.reason
    if _hides_what_lasts(refusal, pending):
        return None
    if (
        not isinstance(pending, dict)
        or not pending
        or pending.get("generation") != refusal.generation
        or pending.get("code") != reason.code.value
    ):
        return PendingNotice(refusal.job, refusal, urgent=reason.code is not WaitCode.EDITED)
    same = (
        pending.get("message") == reason.message
        and pending.get("cause") == delay_cause(reason).value
        and (pending.get("numbers") or {}) == reason.numbers
        and tuple(pending.get("holders") or ()) == refusal.holders
    )
    return None if same else PendingNotice(refusal.job, refusal, urgent=False)


def _hides_what_lasts(refusal: Refusal, pending: object) -> bool:
    """True if the object says that nothing starts the job as it was accepted, and the refusal has no word on that.

    The operator reads it when it accepts the edit: a wait in vain does not count. It may be away for long."""
    if not isinstance(pending, dict) or pending.get("code") not in _LASTING:
        return False
    if refusal.code is WaitCode.EDITED:
        return pending.get("generation") != refusal.generation
    return refusal.code in _OF_WRITES and pending.get("generation") == refusal.generation


def pending_for(refusal: Refusal, status: Mapping[str, Any], now_s: float) -> Json:
    """Return the `status.pending` to write. `since` is kept while the code stays the same.

    Codes that say that no end of a job could start it are one here, anew for each accepted spec: the operator takes
    this time off when it accepts an edit, and must never take any twice."""
    pending = status.get("pending") or {}
    if refusal.code in HOPELESS:
        is_kept = pending.get("code") in _LASTING and pending.get("generation") == refusal.generation
    else:
        is_kept = pending.get("code") == refusal.code.value
    since_s = seconds_from_time(pending.get("since")) if is_kept else 0.0
    return pending_json(refusal, since_s=since_s or now_s)


def first_wait_since_s(job_json: Mapping[str, Any] | None) -> float | None:
    """When a job was created that never was placed or edited and shows no reason yet; None for all others."""
    if job_json is None:
        return None
    metadata, status = job_json["metadata"], job_json.get("status") or {}
    if status.get("pending") or status.get("placement") or metadata.get("generation", 1) > 1:
        return None
    return seconds_from_time(metadata.get("creationTimestamp")) or None


def rewrites_per_s(write_s: float) -> float:
    """Return how many numbers to rewrite per second where a write takes `write_s` seconds; 0: unknown. Our choice."""
    fitting = WRITING_SHARE / write_s if write_s > 0 else PER_SECOND
    return min(PER_SECOND, max(LEAST_PER_SECOND, fitting))


class PendingReasons:
    """The notices not written yet. `now_s` is any clock that only grows.

    `pop_due` runs in the event loop: O(batch + jobs written in the last seconds), for any number of notices."""

    def __init__(self) -> None:
        self._urgent: dict[JobId, PendingNotice] = {}
        self._slow: dict[JobId, PendingNotice] = {}
        self._queue: dict[JobId, None] = {}  # the slow ones, oldest first: a replaced notice keeps its place
        self._edited_s: dict[JobId, float | None] = {}  # since when a notice waits for an edit to be accepted, if seen
        self._written_s: dict[JobId, float] = {}  # when a job's reason was last written
        self._allowance = PER_SECOND
        self._filled_s = 0.0

    def put(self, notice: PendingNotice) -> None:
        """Have this notice instead of any other one of its job."""
        job = notice.job
        if notice.urgent:
            self._slow.pop(job, None)
            self._urgent[job] = notice
        else:
            self._urgent.pop(job, None)
            self._slow[job] = notice
            self._queue.setdefault(job)
        if notice.refusal is not None and notice.refusal.code is WaitCode.EDITED:
            self._edited_s.setdefault(job)
        else:
            self._edited_s.pop(job, None)

    def discard(self, job: JobId) -> None:
        """Have no notice of this job."""
        self._urgent.pop(job, None)
        self._slow.pop(job, None)
        self._edited_s.pop(job, None)

    def clear(self) -> None:
        """Have no notices."""
        self._urgent.clear()
        self._slow.clear()
        self._edited_s.clear()

    def pop_due(self, now_s: float, write_s: float = 0.0) -> tuple[list[PendingNotice], float | None]:
        """Remove and return what to write now, at most a batch, and in how many seconds more is due; None: never.

        `write_s`: what a write takes at present."""
        per_second = rewrites_per_s(write_s)
        self._allowance = min(per_second, self._allowance + (now_s - self._filled_s) * per_second)
        self._filled_s = now_s
        due = [self._urgent.pop(job) for job in list(islice(self._urgent, BATCH))]
        slow, earliest_s = self._pop_slow(now_s, min(BATCH - len(due), int(self._allowance)))
        due += slow
        self._allowance -= len(slow)
        for notice in due:
            self._written_s.pop(notice.job, None)
            self._written_s[notice.job] = now_s
        self._forget(now_s)
        if self._urgent:
            return due, 0.0
        if earliest_s is None:
            return due, None
        return due, max(earliest_s - now_s, (1.0 - self._allowance) / per_second, 0.02)

    def _pop_slow(self, now_s: float, count: int) -> tuple[list[PendingNotice], float | None]:
        """The first of the queue that may be written, and when the next one may be; None without a next one."""
        for job in [job for job, since_s in self._edited_s.items() if since_s is None]:
            self._edited_s[job] = now_s
        taken: list[PendingNotice] = []
        earliest_s: float | None = None
        gone: list[JobId] = []
        for job in self._queue:
            if job not in self._slow:
                gone.append(job)
                continue
            ready_s = self._ready_s(job)
            if ready_s <= now_s and len(taken) < count:
                taken.append(self._slow.pop(job))
                gone.append(job)
                continue
            earliest_s = ready_s if earliest_s is None else min(earliest_s, ready_s)
            if ready_s <= now_s:
                break  # no other one is due before now
        for job in gone:
            del self._queue[job]
        return taken, earliest_s

    def _ready_s(self, job: JobId) -> float:
        """When a slow notice may be written."""
        by_interval_s = self._written_s.get(job, _LONG_AGO_S) + PER_JOB_S
        edited_s = self._edited_s.get(job)
        return by_interval_s if edited_s is None else max(by_interval_s, edited_s + _ACCEPTED_WITHIN_S)

    def _forget(self, now_s: float) -> None:
        for job, written_s in list(self._written_s.items()):  # oldest first
            if written_s + PER_JOB_S > now_s:
                break
            del self._written_s[job]
