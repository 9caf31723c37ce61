"""What a planner remembers of its promises, and what each of them has cost and may cost.

Price: a share of the job's own GPUs (a CPU job's: cores) times the time it has waited. While nodes are kept for it,
what is idle there and would be of use to others is counted against the price, from one cycle to the next. So the waste
never exceeds the price, if a cycle comes when the price is used up: `wake_s` says when.
The memory ends with its planner. Then the job is promised a start again, at the price that is due by then.
Source: ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil, inf
from typing import Final

from coda.cache.queue import waits_since_s
from coda.history.queue_estimates import ExpectedRuns
from coda.history.run_times import RunTimes
from coda.model.job import Job, JobId
from coda.promises.expected_ends import ExpectedEnds
from coda.promises.node_ends import NodeEnds
from coda.tenants import FairShareMemory
from coda.wording import moment_text

_ROUNDING: Final = 1e-9  # a price is used up when so little of it is left
_STEP_S: Final = 600.0  # promised moments are told to ten minutes, so that reasons rarely change


class Promise:
    """The promise to one waiting job. Amounts are of what the job asks for: GPUs, or cores of a CPU job.

    nodes: kept for it, with the ranks that each will hold; empty: none are kept
    start_s: when they are expected to hold it. latest_s: when they do at the latest; None: not known
    spent: GPU-seconds kept idle so far. idle: GPUs that are kept idle now. has_gpus: the job has"""

    __slots__ = (
        "amount",
        "as_of_s",
        "has_gpus",
        "idle",
        "is_certain",
        "job",
        "latest_s",
        "nodes",
        "review_s",
        "share",
        "since_s",
        "spent",
        "start_s",
    )

    def __init__(
        self, job: JobId, share: float, amount: float, since_s: float, now_s: float, *, has_gpus: bool = True
    ) -> None:
        self.job = job
        self.share = share
        self.amount = amount
        self.has_gpus = has_gpus
        self.since_s = since_s
        self.nodes: Mapping[str, int] = {}
        self.start_s = inf
        self.latest_s: float | None = None
        self.is_certain = False  # the price lasts until `latest_s`, whatever happens
        self.review_s = now_s
        self.spent = 0.0
        self.idle = 0.0
        self.as_of_s = now_s

    def copied(self) -> Promise:
        """Return the same promise as an object of its own."""
        copied = Promise(self.job, self.share, self.amount, self.since_s, self.as_of_s, has_gpus=self.has_gpus)
        copied.keep(self.nodes, self.start_s, self.latest_s)
        copied.is_certain, copied.review_s = self.is_certain, self.review_s
        copied.spent, copied.idle = self.spent, self.idle
        return copied

    def price(self, now_s: float) -> float:
        """Return the GPU-seconds that may have been kept idle for it by now."""
        return self.share if self.share == inf else self.share * self.amount * max(0.0, now_s - self.since_s)

    def limit(self, now_s: float) -> float:
        """Return what may be spent by now: where the latest start is known, half the price is kept for certainty."""
        return self.price(now_s) * (0.5 if self.latest_s is not None and not self.is_certain else 1.0)

    def is_used_up(self, now_s: float) -> bool:
        """True if nothing may be spent any more."""
        limit = self.limit(now_s)
        return self.spent >= limit - _ROUNDING * limit

    def used_up_s(self, now_s: float) -> float | None:
        """Return when its price is used up, if as much is kept idle until then; None: never."""
        if self.share == inf:
            return None
        factor = 0.5 if self.latest_s is not None and not self.is_certain else 1.0
        rate = self.idle - factor * self.share * self.amount
        if not self.nodes or rate <= 0:
            return None
        return now_s + max(0.0, self.limit(now_s) - self.spent) / rate

    def keep(self, nodes: Mapping[str, int], start_s: float, latest_s: float | None) -> None:
        """Keep these nodes from now on."""
        self.nodes, self.start_s, self.latest_s = nodes, start_s, latest_s

    def drop(self) -> None:
        """Keep no nodes."""
        self.nodes, self.start_s, self.latest_s, self.is_certain = {}, inf, None, False


def promise_text(promise: Promise) -> str:
    """When the job is expected to start, as a part of its reason."""
    expected = moment_text(ceil(promise.start_s / _STEP_S) * _STEP_S)
    if promise.latest_s is None:
        return (
            f"its start is promised, expected by {expected}; some jobs in its way have no deadline, so not for certain"
        )
    latest = moment_text(ceil(promise.latest_s / _STEP_S) * _STEP_S)
    return f"its start is promised, expected by {expected}; the jobs in its way end by {latest} at the latest"


class PromiseBook:
    """The promises of one planner, and what it knows of run times. Give one to every `decide`; it changes it.

    To decide twice at one time changes nothing more."""

    def __init__(self, run_times: RunTimes | None = None) -> None:
        self.run_times = RunTimes() if run_times is None else run_times
        self.ends = ExpectedEnds(self.run_times)
        self.node_ends = NodeEnds(self.ends)
        self.expected = ExpectedRuns(self.run_times)
        self.promise_by_job: dict[JobId, Promise] = {}
        self.looked_s_by_job: dict[JobId, float] = {}  # when jobs behind the first in line had their last turn
        self.fair_shares = FairShareMemory()
        self.spent_gpu_s = 0.0  # kept idle for GPU jobs so far, by all promises
        self.most_spent_gpu_s = 0.0  # by any of them
        self.stands_still_since_s: float | None = None  # nothing starts: a job waits for what is free in a moment

    def copied(self) -> PromiseBook:
        """Return a book with the same promises: what is decided with it leaves this one as it is."""
        book = PromiseBook(self.run_times)
        book.ends, book.expected = self.ends, self.expected
        book.node_ends = NodeEnds(book.ends)
        book.promise_by_job = {job: promise.copied() for job, promise in self.promise_by_job.items()}
        book.looked_s_by_job = dict(self.looked_s_by_job)
        book.fair_shares = self.fair_shares.copied()
        book.stands_still_since_s = self.stands_still_since_s
        book.spent_gpu_s, book.most_spent_gpu_s = self.spent_gpu_s, self.most_spent_gpu_s
        return book

    def beside(self) -> PromiseBook:
        """Return a copy for a decision about another world: nodes are looked for at once where none are kept."""
        book = self.copied()
        for promise in book.promise_by_job.values():
            if not promise.nodes:
                promise.review_s = promise.as_of_s
        return book

    def begin(self, now_s: float) -> None:
        """A cycle begins: count what was kept idle since the last one."""
        self.expected.indices.begin(now_s)
        for promise in self.promise_by_job.values():
            cost = promise.idle * max(0.0, now_s - promise.as_of_s)
            promise.spent += cost
            promise.as_of_s = now_s
            if promise.has_gpus and cost:
                self.spent_gpu_s += cost
                self.most_spent_gpu_s = max(self.most_spent_gpu_s, promise.spent)

    def promise_to(self, job: Job, share: float, now_s: float) -> Promise:
        """Return the promise to a job that has waited too long. One that ran since then, or changed, has a new one."""
        promise, amount, since_s = self.promise_by_job.get(job.id), amount_of_promise(job), waits_since_s(job)
        if promise is None or promise.since_s != since_s or promise.amount != amount:
            has_gpus = job.request.gpus > 0
            promise = self.promise_by_job[job.id] = Promise(job.id, share, amount, since_s, now_s, has_gpus=has_gpus)
        return promise

    def settle(self, kept: Collection[Promise], waiting: Collection[JobId]) -> None:
        """A cycle ends: only the nodes of these are kept. Promises to jobs that wait no more have ended."""
        self.expected.forget_all_but(waiting)
        for job in [job for job in self.looked_s_by_job if job not in waiting]:
            del self.looked_s_by_job[job]
        for job in list(self.promise_by_job):
            promise = self.promise_by_job[job]
            if promise not in kept:
                promise.idle = 0.0
                promise.drop()
            if job not in waiting:
                del self.promise_by_job[job]


def amount_of_promise(job: Job) -> float:
    """Return the GPUs of the whole gang, or its cores if it has no GPUs."""
    request = job.request
    return float(job.replicas * request.gpus) if request.gpus else job.replicas * request.cpu_m / 1000
