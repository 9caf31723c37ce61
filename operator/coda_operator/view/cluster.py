"""What the operator knows of the cluster: jobs from kopf, gang pods and nodes from watches.

Each write of the operator is put here at once, so no decision rests on a state older than its own write. A pod's
JSON is read once, when the pod changes, and kept as a `RankPod`: a gang of 4096 is looked at thousands of times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping

import orjson

from coda.errors import CodaError
from coda.lifecycle import TEMPLATE_REFUSED, RankPod, Situation
from coda.model import FINISHED
from coda_kube.api.client import Client, NotFound
from coda_kube.api.watch_cache import WatchCache, key_of, version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, LABEL_JOB_UID, PLANNER_LEASE, SYSTEM_NAMESPACE
from coda_kube.objects.write import job_path
from coda_operator.view.experience import LearnedCores
from coda_operator.view.job_record import JobRecord, record_from_json
from coda_operator.view.nodes import Nodes
from coda_operator.view.rank_pods import rank_pod_from_json

log = logging.getLogger(__name__)

JOBS_PATH = f"/apis/{API_VERSION}/trainingjobs"
PLANNER_LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{PLANNER_LEASE}"
LISTING_S = 2.0  # kopf passes a list on object by object; after this it is done

_FINISHED = frozenset(phase.value for phase in FINISHED)


class ClusterView:
    """Caches of jobs, gang pods and nodes.

    `wake` is called with the key of each job that changed, `wake_soon` with the key of each known job whose pods or
    nodes changed."""

    def __init__(
        self,
        client: Client,
        wake: Callable[[str], None],
        wake_soon: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._packed_by_key: dict[str, bytes] = {}  # jobs as bytes: a tenth of the parsed size, in one piece
        self._wake = wake
        self._wake_soon = wake_soon
        self._clock = clock
        self._key_by_uid: dict[str, str] = {}  # of the jobs known
        self._pods_by_job_uid: dict[str, dict[str, RankPod]] = {}
        self._vanished_by_job_uid: dict[str, tuple[int, set[int]]] = {}  # (newest attempt that lost pods, their ranks)
        self._job_uid_by_pod_by_node: dict[str, dict[str, str]] = {}
        self._listed_again = asyncio.Event()
        self.learned_cores = LearnedCores()
        self.jobs = WatchCache(client, JOBS_PATH, listener=self._on_job)
        self.pods = WatchCache(client, "/api/v1/pods", listener=self._on_pod, query={"labelSelector": LABEL_JOB_UID})
        self.nodes = Nodes(client, self._on_node, clock)

    async def run(self) -> None:
        """Watch pods and nodes until cancelled. Jobs come from kopf."""
        await asyncio.gather(self.pods.run(), self.nodes.cache.run(), self._drop_unlisted_jobs_after_outages())

    async def synced(self) -> None:
        """Wait until pods and nodes are known."""
        await asyncio.gather(self.pods.synced.wait(), self.nodes.cache.synced.wait())

    def is_synced(self) -> bool:
        """True once pods and nodes are known."""
        return self.pods.synced.is_set() and self.nodes.cache.synced.is_set()

    def apply_job_event(self, event: str | None, job: Json) -> None:
        """Apply what kopf saw; `event` is a watch's, None in a list.

        kopf keeps events in order per uid only: a job's end may come after the start of the next job of its name."""
        known = self.jobs.by_key.get(key_of(job))
        if event == "DELETED":
            if known is None or _uid(known) == _uid(job):
                self.jobs.drop(job)
            return
        if event is None and known is not None:
            self._listed_again.set()
        self.jobs.put(job)

    def job(self, key: str) -> JobRecord | None:
        """Return a job as it is known, read from its JSON; of a finished one, what may still matter."""
        packed = self._packed_by_key.get(key)
        return None if packed is None else record_from_json(key, orjson.loads(packed))

    def is_new(self, key: str) -> bool:
        """True for a job that is not accepted yet."""
        job = self.jobs.by_key.get(key)
        return job is not None and job["status"]["phase"] is None

    def forget_jobs(self) -> None:
        """Forget all jobs until kopf tells of them again: another replica may change them meanwhile.

        What is known of their pods stays until a list shows which jobs are gone."""
        self.jobs.by_key.clear()
        self._packed_by_key.clear()
        self._listed_again.set()

    def pods_of(self, job: Json) -> Collection[RankPod]:
        """Return the gang pods of a job, of every attempt."""
        return tuple(self._pods_by_job_uid.get(_uid(job), {}).values())

    def vanished(self, job: Json, attempt: int) -> frozenset[int]:
        """Return the ranks of that attempt whose pod was seen and is gone."""
        newest, ranks = self._vanished_by_job_uid.get(_uid(job), (0, set()))
        return frozenset(ranks) if newest == attempt else frozenset()

    def unready_nodes(self, pods: Collection[RankPod]) -> Mapping[str, float]:
        """Return the nodes of these pods that are not Ready or gone, with since when (seconds since 1970)."""
        return self.nodes.unready_since_s({pod.node for pod in pods if pod.node})

    def situation(self, job: JobRecord, *, epoch: int | None = None) -> Situation:
        """Return what the life cycle looks at: the job as it was read, its pods and their nodes as they are now."""
        pods = self.pods_of(job.json)
        return Situation(
            terms=job.terms,
            generation=job.generation,
            progress=job.progress,
            deleting=job.is_deleted,
            placement=job.placement,
            epoch=epoch,
            pods=tuple(sorted(pods, key=lambda pod: (pod.attempt, pod.rank, pod.uid))),
            vanished=self.vanished(job.json, job.progress.attempt),
            unready_since_s=self.unready_nodes(pods),
        )

    async def read_pods_again(self, job: JobRecord) -> None:
        """Bring the job's pods up to date from a consistent list, also those that are gone. Raises Outage."""
        listing = await self._client.list_pages(job.pods_path, {"labelSelector": f"{LABEL_JOB_UID}={job.uid}"})
        present = {key_of(pod) for pod in listing["items"]}
        for pod in listing["items"]:
            self.pods.put(pod)
        for key in self._pods_by_job_uid.get(_uid(job.json), {}).keys() - present:
            self._drop_older(self.pods, self.pods.by_key[key], int(listing["metadata"]["resourceVersion"]))

    async def read_job_again(self, key: str) -> None:
        """Bring the job up to date; drop it if it is gone. Raises Outage."""
        try:
            self.jobs.put(await self._client.get(job_path(key)))
        except NotFound:
            if key in self.jobs.by_key:
                self.jobs.drop(self.jobs.by_key[key])

    async def planner_epoch(self) -> int:
        """Read the transitions of the planner's Lease; -1 if there has never been a planner. Raises Outage."""
        try:
            lease = await self._client.get(PLANNER_LEASE_PATH)
        except NotFound:
            return -1
        return int((lease.get("spec") or {}).get("leaseTransitions") or 0)

    async def _drop_unlisted_jobs_after_outages(self) -> None:
        """After an outage kopf lists again, but never says which jobs are gone."""
        while True:
            await self._listed_again.wait()
            await asyncio.sleep(LISTING_S)
            self._listed_again.clear()
            try:
                await self._drop_unlisted_jobs()
            except CodaError as error:
                log.info("%s: %s", JOBS_PATH, error)
                self._listed_again.set()

    async def _drop_unlisted_jobs(self) -> None:
        """A function of its own: inside the loop above a page of the list would stay in memory until the next list."""
        present: set[str] = set()
        version = 0
        async for page in self._client.pages(JOBS_PATH):
            version = int(page["metadata"]["resourceVersion"])
            present |= {_uid(job) for job in page.get("items") or ()}
        for job in [job for job in self.jobs.by_key.values() if _uid(job) not in present]:
            self._drop_older(self.jobs, job, version)
        present |= {_uid(job) for job in self.jobs.by_key.values()}
        for uid in self._key_by_uid.keys() - present:
            self._forget_uid(uid)

    def _forget_uid(self, uid: str) -> None:
        self._key_by_uid.pop(uid, None)
        self._vanished_by_job_uid.pop(uid, None)

    def _drop_older(self, cache: WatchCache, item: Json, version: int) -> None:
        """Drop an item that a list of that version lacks, unless the item is newer than the list."""
        if version_of(item) <= version:
            cache.drop(item)

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        if old is not None and (new is None or _uid(new) != _uid(old)):
            self._forget_uid(_uid(old))
        if new is None:
            self._packed_by_key.pop(key, None)
        else:
            self._packed_by_key[key] = orjson.dumps(_without_finished_parts(new))
            self.jobs.by_key[key] = _phase_only(new)
            self._key_by_uid[_uid(new)] = key
            self.learned_cores.learn_from(new)
        self._wake(key)

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        pod_now = None
        if new is not None:
            known = self._pods_by_job_uid.get(_job_uid(new), {}).get(key)
            pod_now = rank_pod_from_json(new, now_s=self._clock(), before=known)
        if old is not None:
            stays = new is not None and _job_uid(new) == _job_uid(old)
            self._remove_pod(key, _job_uid(old), pod_now if stays else None)
        if new is not None and pod_now is not None:
            self._pods_by_job_uid.setdefault(_job_uid(new), {})[key] = pod_now
            if pod_now.node:
                self._job_uid_by_pod_by_node.setdefault(pod_now.node, {})[key] = _job_uid(new)
            self.pods.by_key[key] = _pod_of_job(new)
        for uid in {_job_uid(item) for item in (old, new) if item is not None}:
            self._wake_job(uid)

    def _remove_pod(self, key: str, job_uid: str, pod_now: RankPod | None) -> None:
        """Forget a pod as it was. If the rank has lost it, remember that the rank had one."""
        pods = self._pods_by_job_uid.get(job_uid, {})
        pod = pods.pop(key, None)
        if pod is None:
            return
        if not pods:
            del self._pods_by_job_uid[job_uid]
        if pod.node:
            self._remove_from_node(pod.node, key)
        is_same = pod_now is not None and (pod_now.uid, pod_now.attempt, pod_now.rank) == (
            pod.uid,
            pod.attempt,
            pod.rank,
        )
        if not is_same and job_uid in self._key_by_uid:
            self._note_vanished(job_uid, pod)

    def _note_vanished(self, job_uid: str, pod: RankPod) -> None:
        attempt, ranks = self._vanished_by_job_uid.get(job_uid, (pod.attempt, set()))
        if pod.attempt > attempt:
            attempt, ranks = pod.attempt, set()
        if pod.attempt == attempt:
            ranks.add(pod.rank)
            self._vanished_by_job_uid[job_uid] = attempt, ranks

    def _remove_from_node(self, node: str, key: str) -> None:
        pods = self._job_uid_by_pod_by_node[node]
        del pods[key]
        if not pods:
            del self._job_uid_by_pod_by_node[node]
            self.nodes.forget_if_gone(node)

    def _on_node(self, name: str) -> None:
        uids = set(self._job_uid_by_pod_by_node.get(name, {}).values())
        if not uids:
            self.nodes.forget_if_gone(name)
        for uid in uids:
            self._wake_job(uid)

    def _wake_job(self, uid: str) -> None:
        if uid in self._key_by_uid:
            self._wake_soon(self._key_by_uid[uid])


def _uid(job: Json) -> str:
    """Return a job's uid within its namespace: a pod's labels may claim any uid, but only in their own namespace."""
    return f"{job['metadata']['namespace']}/{job['metadata']['uid']}"


def _job_uid(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['labels'][LABEL_JOB_UID]}"


def _without_content(item: Json) -> Json:
    """Return only what a cache itself needs of an object."""
    return {"metadata": {name: item["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}}


def _pod_of_job(pod: Json) -> Json:
    kept = _without_content(pod)
    kept["metadata"]["labels"] = {LABEL_JOB_UID: pod["metadata"]["labels"][LABEL_JOB_UID]}
    return kept


def _phase_only(job: Json) -> Json:
    return _without_content(job) | {"status": {"phase": (job.get("status") or {}).get("phase")}}


def _without_finished_parts(job: Json) -> Json:
    """Return a finished job without its template and placement, which nothing reads again; jobs stay for weeks.

    A refused template stays: it may be edited."""
    status = job.get("status") or {}
    if status.get("phase") not in _FINISHED or status.get("reason") == TEMPLATE_REFUSED:
        return job
    spec = {name: field for name, field in job["spec"].items() if name != "template"}
    return job | {"spec": spec, "status": {name: field for name, field in status.items() if name != "placement"}}
