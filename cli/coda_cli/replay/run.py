"""One replay on a running cluster: submit the jobs, follow them, stop when every job is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from coda.wording import counted
from coda_cli.job_history import Follower, following
from coda_cli.progress import Progressed, ReplayDisplay, counts_of
from coda_cli.replay.cpu_owner import owning
from coda_cli.replay.metrics import FollowedJob
from coda_cli.replay.submissions import LABEL_RUN, Manner, Sent, Submission, check_ready, creating, submit_all
from coda_kube.api.client import Client

LOOK_AFTER_S = 0.25  # more often would take time from the cluster under test
IN_TURN_S = 0.05
"""How long the next job waits until this one is in the queue. Jobs must queue in the order of the trace, and a few
milliseconds of real time can change it."""

PATIENCE_S = 300.0
"""The replay ends if this long nothing was due, nothing changed and no run time remained: the rest will not move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLimits:
    """When to stop while jobs are open. `ended_parts` names processes of the cluster that should run and do not."""

    timeout_s: float | None = None
    patience_s: float = PATIENCE_S
    restart_s: float = 30.0  # a part that ended may be started again within this
    ended_parts: Callable[[], tuple[str, ...]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What was seen of all submissions that were sent. `stopped`: why it ended early, if it did."""

    jobs: tuple[FollowedJob, ...]
    began_s: float
    ended_s: float
    stopped: str | None


async def replay(
    client: Client,
    submissions: Sequence[Submission],
    manner: Manner,
    display: ReplayDisplay,
    limits: ReplayLimits,
) -> Replayed:
    """Submit each job at its time, and follow all until each is over or can never start, or until the time is up.

    Raises InvalidInput before it creates anything, if names are taken or the cluster has no TrainingJobs."""
    within = manner.followed_namespace
    await check_ready(client, within, submissions)
    sent_by_name: dict[str, Sent] = {}

    def record(submission: Submission, sent: Sent) -> None:
        sent_by_name[submission.name] = sent

    async def queued(submission: Submission) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(IN_TURN_S):
                while not follower.is_queued(submission.name):
                    await follower.change(IN_TURN_S)

    training_job = creating(client)

    async def create(submission: Submission) -> None:
        await (owner.create_pods if submission.is_cpu_job else training_job)(submission)

    selector = f"{LABEL_RUN}={manner.run}"
    async with (
        following(client, within, selector=selector, with_pods=manner.with_pods) as follower,
        owning(client, manner, submissions, follower) as owner,
    ):
        began_s = time.time()
        submitting = asyncio.create_task(submit_all(create, submissions, start_s=began_s, record=record, queued=queued))
        progress = _Watch(submissions, manner.speed, began_s, sent_by_name, follower)
        try:
            stopped = await _until_over(progress, submitting, display, limits)
        finally:
            submitting.cancel()
            with suppress(asyncio.CancelledError):
                await submitting
        return Replayed(
            jobs=tuple(
                FollowedJob(submission=one, sent=sent_by_name[one.name], history=follower.by_name.get(one.name))
                for one in submissions
                if one.name in sent_by_name
            ),
            began_s=began_s,
            ended_s=time.time(),
            stopped=stopped,
        )


async def _until_over(
    watch: _Watch, submitting: asyncio.Task[None], display: ReplayDisplay, limits: ReplayLimits
) -> str | None:
    """Return None once all jobs are over, or why it stopped before."""
    whole_s = watch.began_s  # when every part was last seen running
    while True:
        now_s = time.time()
        display.tell(watch.progressed(now_s))
        if submitting.done():
            submitting.result()  # a failure of ours ends the replay
            if watch.is_over():
                return None
        ended = limits.ended_parts()
        whole_s = whole_s if ended else now_s
        why = _why_stop(watch, limits, now_s)
        if now_s - whole_s > limits.restart_s:
            why = f"{', '.join(ended)} of the local control plane ended"
        if why is not None:
            return f"{why}, with {counted(watch.open_jobs(), 'job')} unfinished"
        await watch.follower.change(1.0)
        await asyncio.sleep(LOOK_AFTER_S)


def _why_stop(watch: _Watch, limits: ReplayLimits, now_s: float) -> str | None:
    if limits.timeout_s is not None and now_s - watch.began_s > limits.timeout_s:
        return "the time given (--timeout) was over"
    if now_s > watch.quiet_until_s() + limits.patience_s:
        return f"nothing changed for {limits.patience_s:g} s"
    return None


@dataclass(slots=True)
class _Watch:
    """What the loop watches: the submissions, what was sent and what was seen so far."""

    submissions: Sequence[Submission]
    speed: float
    began_s: float
    sent_by_name: dict[str, Sent]
    follower: Follower

    def is_over(self) -> bool:
        return self.open_jobs() == 0

    def open_jobs(self) -> int:
        """Return how many jobs are neither over nor known to be impossible."""
        return sum(not self._is_settled(one) for one in self.submissions)

    def quiet_until_s(self) -> float:
        """Return when silence begins to mean something: the last change or submission, plus the longest run time."""
        last_s = max([self.follower.changed_s, *(self.began_s + one.at_s for one in self.submissions[-1:])])
        return last_s + max((self._run_s(one) for one in self.submissions), default=0.0)

    def progressed(self, now_s: float) -> Progressed:
        elapsed_s = now_s - self.began_s
        ends_s = [self._end_s(one, now_s) for one in self.submissions if not self._is_settled(one)]
        return Progressed(
            jobs=len(self.submissions),
            submitted=len(self.sent_by_name),
            elapsed_s=elapsed_s,
            trace_s=elapsed_s * self.speed,
            left_s=max(0.0, max(ends_s, default=now_s) - now_s),
            **counts_of(self.follower.by_name),
        )

    def _end_s(self, submission: Submission, now_s: float) -> float:
        """Return when the job ends; one that has not started is assumed to start now, or when it is due."""
        history = self.follower.by_name.get(submission.name)
        started_s = history.seen.started_s if history else None
        if started_s is None:
            started_s = max(now_s, self.began_s + submission.at_s)
        return started_s + self._run_s(submission)

    def _run_s(self, submission: Submission) -> float:
        return submission.gang.row.duration_s / self.speed

    def _is_settled(self, submission: Submission) -> bool:
        sent = self.sent_by_name.get(submission.name)
        if sent is not None and sent.refusal is not None:
            return True
        history = self.follower.by_name.get(submission.name)
        return history is not None and (history.is_over or history.is_hopeless)
