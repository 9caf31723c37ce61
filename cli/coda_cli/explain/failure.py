"""What `coda explain` says of a job that failed: why, what follows, and which other jobs failed alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from coda.wording import counted, listed
from coda_kube.failures.failed_jobs import FailedJobs

Item = Mapping[str, Any]

NAMED: Final = 5
"""Jobs that are named; others are counted. Our choice."""


def failure_sentences(job: Item, others: Iterable[Item], now_s: float) -> Iterator[str]:
    """Yield what is known of the last attempt that failed by itself. `others`: the jobs of its namespace."""
    failure = (job.get("status") or {}).get("failure")
    if not failure:
        return
    places = [f"rank {failure['rank']}"] if "rank" in failure else []
    places += [f"on {failure['node']}"] if failure.get("node") else []
    where = f" ({' '.join(places)})" if places else ""
    said = f": {failure['evidence']}" if failure.get("evidence") else ""
    sub = f", {failure['subReason']}" if failure.get("subReason") else ""
    yield f"Attempt {failure.get('attempt')} failed with {failure.get('reason')}{sub}{where}{said}."
    if failure.get("decision"):
        yield f"What followed: {failure['decision']}."
    if failure.get("advice") and failure["advice"] not in failure.get("decision", ""):
        yield f"You can: {failure['advice']}."
    if names := _alike(job, others, now_s):
        more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
        jobs = listed([*names[:NAMED], *more])
        yield f"{counted(len(names), 'other job')} of its user failed alike within a day: {jobs}."


def _alike(job: Item, others: Iterable[Item], now_s: float) -> tuple[str, ...]:
    """Return the jobs that failed alike: those known when it failed, and those since, of its namespace."""
    failure = job["status"]["failure"]
    known = FailedJobs()
    for other in others:
        known.see(other, now_s)
    since = known.alike(job, failure.get("signature") or "", now_s).names
    before = (failure.get("alike") or {}).get("names") or ()
    return (*since, *(name for name in before if name not in since))  # one of another namespace is `NAMESPACE/*`
