"""The owner of a replay's CPU jobs: makes their pods, follows them, and makes those that were evicted anew, at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coda.errors import CodaError, InvalidInput
from coda.model import WaitCode
from coda_cli.job_history import Follower, WaitRecord, within
from coda_cli.replay.cpu_histories import Attempt, attempt_after, history_of
from coda_cli.replay.cpu_job_objects import is_gated, jobs_path, pod_name, pod_of, pods_path
from coda_cli.replay.submissions import LABEL_RUN, Manner, Submission
from coda_kube.api.client import AlreadyExists, Client, Rejected
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import EXTENDER

AT_ONCE: Final = 32
OPTED_IN_WITHIN_S: Final = 20.0  # the API server learns of a label within moments; nothing tells when
RETRY_S: Final = 0.5

_CODES: Final = frozenset(code.value for code in WaitCode)


@dataclass(slots=True, kw_only=True)
class _Owned:
    """A CPU job: its submission, its Job's uid, and the pods so far."""

    submission: Submission
    uid: str = ""
    ranks: dict[int, tuple[Attempt, ...]] = field(default_factory=dict)
    reasons: tuple[WaitRecord, ...] = ()


class _Pod(NamedTuple):
    """A pod that was made, or is being made."""

    job: _Owned
    rank: int
    attempt: int  # from 1
    run_s: float


class CpuJobOwner:
    """Plays the controller of the Jobs. Made by `owning`; histories go to the follower."""

    def __init__(
        self,
        client: Client,
        manner: Manner,
        submissions: Sequence[Submission],
        follower: Follower,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._manner = manner
        self._follower = follower
        self._now = now
        self._owned = {one.name: _Owned(submission=one) for one in submissions if one.is_cpu_job}
        self._by_pod: dict[str, _Pod] = {}
        self._returning: asyncio.Queue[_Pod] = asyncio.Queue()

    async def create_jobs(self) -> None:
        """Make every Job, before any of its pods is due. Raises InvalidInput if a namespace has not opted in, or has a
        Job of such a name."""
        gate = asyncio.Semaphore(AT_ONCE)
        for namespace in sorted({one.submission.namespace for one in self._owned.values()}):
            await self._wait_until_opted_in(namespace)

        async def create(owned: _Owned) -> None:
            manifest = owned.submission.manifest
            async with gate:
                made = await self._client.create(jobs_path(owned.submission.namespace), manifest)
            owned.uid = made["metadata"]["uid"]

        try:
            async with asyncio.TaskGroup() as group:
                for owned in self._owned.values():
                    group.create_task(create(owned))
        except* Rejected as refusals:
            raise InvalidInput(f"a CPU job's Job cannot be made: {refusals.exceptions[0]}") from None

    async def _wait_until_opted_in(self, namespace: str) -> None:
        owned = next(one for one in self._owned.values() if one.submission.namespace == namespace)
        pod = pod_of(owned.submission.manifest, uid="0", rank=0, attempt=1, run_s=1.0)
        try:
            async with asyncio.timeout(OPTED_IN_WITHIN_S if self._manner.opts_in else None):
                while not is_gated(await self._client.create(pods_path(namespace), pod, {"dryRun": "All"})):
                    if not self._manner.opts_in:
                        raise TimeoutError
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise InvalidInput(
                f"namespace {namespace} takes no CPU jobs: kubectl label namespace {namespace} "
                "coda.scheduler/opt-in=true (docs/cpu-jobs.md), or add --gpu-jobs-only"
            ) from None
        except Rejected as error:
            raise InvalidInput(
                f"no pod of a CPU job can be made in namespace {namespace}, which only an administrator of the cluster "
                f"may do: {error} (or add --gpu-jobs-only)"
            ) from error

    async def create_pods(self, submission: Submission) -> None:
        """Make the first pod of each rank. Whoever repeats this after an outage makes none twice."""
        run_s = submission.gang.row.duration_s / self._manner.speed
        for rank in range(submission.gang.replicas):
            await self._create(_Pod(self._owned[submission.name], rank, 1, run_s))

    async def _create(self, pod: _Pod) -> None:
        submission, exit_code = pod.job.submission, int(pod.job.submission.expects_failure)
        rank, attempt, run_s = pod.rank, pod.attempt, pod.run_s
        self._by_pod[pod_name(submission.name, rank, attempt)] = pod
        body = pod_of(
            submission.manifest, uid=pod.job.uid, rank=rank, attempt=attempt, run_s=run_s, exit_code=exit_code
        )
        with suppress(AlreadyExists):  # of a try that was not answered
            await self._client.create(pods_path(submission.namespace), body)

    async def run(self) -> None:
        """Make anew what was evicted, until cancelled."""
        while True:
            pod = await self._returning.get()
            left_s = pod.job.ranks[pod.rank][-1].left_s
            again = pod._replace(attempt=pod.attempt + 1, run_s=left_s if pod.job.submission.resumes else pod.run_s)
            while True:
                try:
                    await self._create(again)
                    break
                except CodaError:  # nobody else makes it anew
                    await asyncio.sleep(RETRY_S)

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """Listen to a `WatchCache` of the replay's pods."""
        pod = self._by_pod.get((new or old or {})["metadata"]["name"])
        if pod is None:
            return
        now_s, index = self._now(), pod.attempt - 1
        known = pod.job.ranks.get(pod.rank, ())
        before = known[index] if index < len(known) else Attempt(number=pod.attempt, run_s=pod.run_s, queued_s=now_s)
        after = attempt_after(before, new, now_s)
        pod.job.ranks[pod.rank] = (*known[:index], after, *known[index + 1 :])
        if after.is_stopped and not before.is_stopped:
            self._returning.put_nowait(pod)
        self._show(pod.job)

    def on_event(self, _old: Json | None, new: Json | None) -> None:
        """Listen to a `WatchCache` of the extender's Events: why a CPU job waits."""
        if new is None or new.get("reason") not in _CODES or new["involvedObject"].get("kind") != "Job":
            return
        owned = self._owned.get(new["involvedObject"].get("name", ""))
        if owned is None:
            return
        said = WaitRecord(code=new["reason"], message=new.get("message", ""), seen_s=self._now())
        if all((one.code, one.message) != (said.code, said.message) for one in owned.reasons):
            owned.reasons = (*owned.reasons, said)
            self._show(owned)

    def _show(self, owned: _Owned) -> None:
        submission = owned.submission
        self._follower.put(history_of(submission.name, submission.gang, owned.ranks, owned.reasons))


@asynccontextmanager
async def owning(
    client: Client, manner: Manner, submissions: Sequence[Submission], follower: Follower
) -> AsyncIterator[CpuJobOwner]:
    """Yield the owner of the CPU jobs among the submissions; inside the context it follows them."""
    owner = CpuJobOwner(client, manner, submissions, follower)
    if not any(one.is_cpu_job for one in submissions):
        yield owner
        return
    await owner.create_jobs()
    scope = within(manner.followed_namespace)
    queries: Sequence[tuple[str, Callable[[Json | None, Json | None], None], Mapping[str, str]]] = (
        (f"/api/v1{scope}/pods", owner.on_pod, {"labelSelector": f"{LABEL_RUN}={manner.run}"}),
        (f"/api/v1{scope}/events", owner.on_event, {"fieldSelector": f"reportingComponent={EXTENDER}"}),
    )
    caches = [WatchCache(client, path, listener=listener, query=query) for path, listener, query in queries]
    tasks = [*(asyncio.create_task(cache.run()) for cache in caches), asyncio.create_task(owner.run())]
    try:
        await asyncio.gather(*(cache.synced.wait() for cache in caches))
        yield owner
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
