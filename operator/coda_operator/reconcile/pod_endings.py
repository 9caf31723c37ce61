"""Ends pods: tells them before where they asked for it, deletes them and lifts our finalizer. A pod that cannot be
written delays no other.

It is tried less and less often, until it changes: a policy may refuse it for as long as its owner likes, or a user has
padded it to the limit of etcd.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from coda.errors import CodaError, Conflict
from coda.lifecycle import RankPod
from coda.lifecycle.state import deletable
from coda_kube.api.client import STRATEGIC_MERGE, Client, NotFound, Rejected
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.names import LABEL_JOB_UID, RANK_FINALIZER
from coda_kube.objects.pods.stops import ANNOTATION_STOP, Announcement, announcement_text
from coda_operator.reconcile.request_slots import NotLeaderError, Purpose, RequestSlots
from coda_operator.view import ClusterView, JobRecord
from coda_operator.view.rank_pods import rank_pod_from_json
from coda_operator.work_queue import LAST_OUTAGE_DELAY_S, LONGEST_DELAY_S, retry_delay_s

log = logging.getLogger(__name__)

ANOTHER: Final = "metadata.uid"  # another pod has the name now: the API server takes that for a change of the field

TOLD_AGAIN_S: Final = 5.0
"""Seconds until a pod is told again. Our choice: some tries within any useful notice."""

MOST_CLEARED: Final = 20_000
"""Finished jobs that are remembered to have no pods. Our choice: 2 MB; of the others the API server is asked again."""

Result = TypeVar("Result")

Write = Callable[[str, RankPod], Awaitable[None]]
"""Writes the pod that is at a path."""


class PodEndings:
    """Deletes pods and lets them go. Raises nothing but NotLeaderError and errors of our own."""

    def __init__(
        self, client: Client, cluster: ClusterView, requests: RequestSlots, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests
        self._clock = clock
        self._failed: dict[str, tuple[int, int, float]] = {}  # by key: the pod's version, failures in a row, until when
        self._cleared: dict[str, None] = {}  # uids of finished jobs that have no pods left, the oldest first

    async def delete(self, namespace: str, job_uid: str, pods: Iterable[RankPod]) -> float | None:
        """Delete these pods, and no other pods of their names; then let them go. Returns when to try again, if ever.

        All are asked to end before the first is let go: so none goes on while others have ended long ago."""
        pods = tuple(pods)
        again_s = await self._write(namespace, job_uid, pods, self._delete)
        deleted = [pod for pod in pods if f"{namespace}/{pod.name}" not in self._failed]
        return _earliest(again_s, await self.let_go(namespace, job_uid, deleted))

    async def delete_left(self, job: JobRecord) -> float | None:
        """Delete the pods that a finished job has left: nothing remembers them. Returns when to try again, if ever.

        Asked once they are gone, it costs nothing. Raises Outage."""
        if job.uid in self._cleared:
            return None
        async with self._requests.reading():
            listing = await self._client.list_pages(job.pods_path, {"labelSelector": f"{LABEL_JOB_UID}={job.uid}"})
        pods = [rank_pod_from_json(pod, now_s=self._clock(), before=None) for pod in listing["items"]]
        namespace = job.json["metadata"]["namespace"]
        left = [pod for pod in deletable(tuple(pods)) if pod.owned]
        if await self.delete(namespace, job.uid, left) is not None:
            return self._clock() + LONGEST_DELAY_S  # nobody waits for it
        self._cleared[job.uid] = None
        if len(self._cleared) > MOST_CLEARED:
            del self._cleared[next(iter(self._cleared))]
        return None

    async def let_go(self, namespace: str, job_uid: str, pods: Iterable[RankPod]) -> float | None:
        """Lift our finalizer from these pods. Returns when to try again, if ever."""
        return await self._write(namespace, job_uid, [pod for pod in pods if pod.held], self._lift)

    async def _write(self, namespace: str, job_uid: str, pods: Iterable[RankPod], write: Write) -> float | None:
        async def end(pod: RankPod) -> float | None:
            key = f"{namespace}/{pod.name}"
            known = self._cluster.pods.by_key.get(key)
            version, failures, until_s = self._failed.get(key, (0, 0, 0.0))
            is_same = known is not None and version_of(known) == version
            if is_same and self._clock() < until_s:
                return until_s
            try:
                async with self._requests.writing(Purpose.END, job_uid):
                    await write(f"/api/v1/namespaces/{namespace}/pods/{pod.name}", pod)
            except NotLeaderError:
                raise
            except CodaError as error:
                return self._note(key, version_of(known) if known else 0, failures if is_same else 0, error)
            self._failed.pop(key, None)
            return None

        return _earliest(*await _all_ended([end(pod) for pod in pods]))

    def _note(self, key: str, version: int, failures: int, error: CodaError) -> float:
        """Note a failure; return when to try again."""
        self._failed = {known: failed for known, failed in self._failed.items() if known in self._cluster.pods.by_key}
        delay_s = retry_delay_s(failures, LAST_OUTAGE_DELAY_S)
        self._failed[key] = version, failures + 1, self._clock() + delay_s
        log.warning("pod %s does not end: %s; trying again in %.0f s, or when it changes", key, error, delay_s)
        return self._failed[key][2]

    async def _delete(self, path: str, pod: RankPod) -> None:
        """Delete a pod with the grace period of its spec, also one that somebody deleted with a longer one."""
        await self._client.delete(path, uid=pod.uid, grace_s=pod.shorten_to_s or None)

    async def _lift(self, path: str, pod: RankPod) -> None:
        """Lift our finalizer from a pod, and no other pod of its name; no error if it is gone."""
        patch = {"metadata": {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [RANK_FINALIZER]}}
        try:
            await self._client.patch(path, patch, STRATEGIC_MERGE)
        except (NotFound, Conflict):
            return
        except Rejected as refusal:
            if ANOTHER not in str(refusal):
                raise


class StopAnnouncer:
    """Tells the ranks of a job that they are to save and end: an annotation on each of their pods.

    Raises nothing but NotLeaderError and errors of our own. Who is not told is stopped at the end of the notice too."""

    def __init__(
        self, client: Client, cluster: ClusterView, requests: RequestSlots, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests
        self._clock = clock

    async def tell(self, job: JobRecord, due_s: float, pods: Iterable[RankPod]) -> float | None:
        """Tell these pods. `due_s`: when they are stopped, as it was written. Returns when to try again, if ever."""
        order = job.placement.stop if job.placement is not None else None
        if job.placement is None or order is None:
            return None
        text = announcement_text(
            Announcement(id=job.placement.plan_id, cause=order.cause.value, notice_s=order.notice_s, until_s=due_s)
        )
        told = await _all_ended([self._tell(job, pod, text) for pod in pods])
        return None if all(told) else self._clock() + TOLD_AGAIN_S

    async def _tell(self, job: JobRecord, pod: RankPod, text: str) -> bool:
        path = f"{job.pods_path}/{pod.name}"
        patch = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION_STOP: text}}}
        try:
            async with self._requests.writing(Purpose.END, job.uid):
                self._cluster.pods.put(await self._client.patch(path, patch))
        except NotLeaderError:
            raise
        except CodaError as error:
            log.warning("pod %s of %s is not told that it is to stop: %s", pod.name, job.key, error)
            return False
        return True


async def _all_ended(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """Wait for all of them, then raise the first error: no write goes on behind the caller."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _earliest(*moments_s: float | None) -> float | None:
    return min((moment_s for moment_s in moments_s if moment_s is not None), default=None)
