"""What the operator knows of the cluster: jobs from kopf, gang pods and nodes from watches.

Each write of the operator is put here at once, so no decision rests on a state older than its own write. A pod's
JSON is read once, when the pod changes, and kept as a `RankPod`: a gang of 4096 is looked at thousands of times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from coda.errors import CodaError
from coda.lifecycle import LifecycleConfig, PodState, RankPod, Situation
from coda.model import Phase
from coda_kube.api.bodies.json_text import shallow
from coda_kube.api.client import Client, NotFound
from coda_kube.api.watch_cache import WatchCache, key_of, version_of
from coda_kube.failures.failed_jobs import FailedJobs
from coda_kube.failures.node_failures import Suspicion
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, LABEL_JOB_UID, PLANNER_LEASE, SYSTEM_NAMESPACE
from coda_kube.objects.read import placement_from_json
from coda_kube.objects.write import job_path
from coda_operator.view.admission_waiters import AdmissionWaiters
from coda_operator.view.agents import Agents
from coda_operator.view.deadlines import Deadlines
from coda_operator.view.experience import LearnedCores
from coda_operator.view.job_record import JobRecord, record_from_json
from coda_operator.view.nodes import Nodes
from coda_operator.view.packed_jobs import FINISHED_PHASES, KnownJob, packed_job, pod_of_job, unpacked_job
from coda_operator.view.pods.unbound_pods import UnboundPods
from coda_operator.view.pods.watch_gaps import WatchGap, drop_older
from coda_operator.view.rank_pods import note_gone, of_attempt, rank_pod_from_json
from coda_operator.view.time_ledger import TimeLedger

log = logging.getLogger(__name__)

JOBS_PATH = f"/apis/{API_VERSION}/trainingjobs"
PLANNER_LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{PLANNER_LEASE}"
LISTING_S = 2.0  # kopf passes a list on object by object; after this it is done


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
        config: LifecycleConfig | None = None,
    ) -> None:
        self._client = client
        self._packed_by_key: dict[str, bytes] = {}
        self._wake = wake
        self._wake_soon = wake_soon
        self._clock = clock
        self._key_by_uid: dict[str, str] = {}  # of the jobs known
        self._pods_by_job_uid: dict[str, dict[str, RankPod]] = {}
        self._vanished_by_job_uid: dict[str, tuple[int, set[int]]] = {}  # (newest attempt that lost pods, their ranks)
        self._succeeded_by_job_uid: dict[str, tuple[int, set[int]]] = {}  # the same of pods that had succeeded
        self._job_uid_by_pod_by_node: dict[str, dict[str, str]] = {}
        self._unheard_since_s: float | None = None
        self._deadlines = Deadlines()
        self._unbound = UnboundPods(clock)
        self._pods_gap = WatchGap(clock)
        self.listing = asyncio.Event()  # set while kopf lists jobs: not all are known
        self._listed_s = 0.0  # when it last told of a job of a list
        self.restored = asyncio.Event()  # the API server's data come from a backup: list the jobs again
        self.learned_cores = LearnedCores()
        self.failed_jobs = FailedJobs()
        self.suspicion = Suspicion()  # of nodes
        self.times = TimeLedger()
        self.admission_waiters = AdmissionWaiters(wake_soon)
        self.jobs = WatchCache(client, JOBS_PATH, listener=self._on_job)
        self.pods = WatchCache(
            client,
            "/api/v1/pods",
            listener=self._on_pod,
            query={"labelSelector": LABEL_JOB_UID},
            on_break=lambda: self._pods_gap.begin(self.pods),
            held_part=self._held_part,
            on_restored=self._on_restored,
        )
        self.agents = Agents(client, clock)  # not kept up to date here: only who leads needs them
        self.nodes = Nodes(client, self._on_node, clock, config or LifecycleConfig())

    async def run(self) -> None:
        """Watch pods and nodes until cancelled. Jobs come from kopf."""
        await asyncio.gather(self.pods.run(), self.nodes.run(), self._drop_unlisted_jobs_after_outages())

    async def synced(self) -> None:
        """Wait until pods and nodes are known."""
        await asyncio.gather(self.pods.synced.wait(), self.nodes.cache.synced.wait())

    def is_synced(self) -> bool:
        """True once pods and nodes are known."""
        return self.pods.synced.is_set() and self.nodes.cache.synced.is_set()

    def apply_job_event(self, event: str | None, job: Json) -> None:
        """Apply what kopf saw; `event` is a watch's, None in a list.

        kopf keeps events in order per uid only: a job's end may come after the start of the next job of its name."""
        self._unheard_since_s = None
        known = self.jobs.by_key.get(key_of(job))
        if event == "DELETED":
            if known is None or _uid(known) == _uid(job):
                self.jobs.drop(job)
            return
        if event is None:
            self._listed_s = self._clock()
            if known is not None:
                self.listing.set()
        self.jobs.put(job)

    def put_written(self, job: Json) -> None:
        """Apply the answer to a write of our own, of which kopf will tell, too."""
        known = self.jobs.by_key.get(key_of(job))
        is_news = known is None or version_of(known) < version_of(job)  # else kopf was faster, or nothing changed
        if is_news and self._unheard_since_s is None:
            self._unheard_since_s = self._clock()
        self.jobs.put(job)

    def unheard_since_s(self) -> float | None:
        """Return since when kopf has not told of a write of ours; None if it has told of something since."""
        return self._unheard_since_s

    def job(self, key: str) -> JobRecord | None:
        """Return a job as it is known, read from its JSON; of a finished one, what may still matter."""
        packed = self._packed_by_key.get(key)
        return None if packed is None else record_from_json(key, unpacked_job(packed))

    def jobs_on(self, node: str) -> list[JobRecord]:
        """Return the jobs of which a pod is on the node, by key."""
        keys = {self._key_by_uid.get(uid, "") for uid in self._job_uid_by_pod_by_node.get(node, {}).values()}
        return [job for key in sorted(keys) if (job := self.job(key)) is not None]

    def is_new(self, key: str) -> bool:
        """True for a job that is not accepted yet."""
        job = self.jobs.by_key.get(key)
        return job is not None and job["status"]["phase"] is None

    def forget_jobs(self) -> None:
        """Forget all jobs until kopf tells of them again: another replica may change them meanwhile.

        What is known of their pods stays until a list shows which jobs are gone."""
        self._unheard_since_s = None
        self.jobs.forget_all()
        self.times.forget_all(self._clock())
        self.failed_jobs.forget_all()
        self.admission_waiters.forget_all()
        self._packed_by_key.clear()
        self.listing.set()

    def _on_restored(self) -> None:
        """What is known of jobs and of vanished pods may never have happened."""
        self._vanished_by_job_uid.clear()
        self._succeeded_by_job_uid.clear()
        self.restored.set()

    def pods_of(self, job: Json) -> Collection[RankPod]:
        """Return the gang pods of a job, of every attempt."""
        return tuple(self._pods_by_job_uid.get(_uid(job), {}).values())

    def held_without_job(self) -> list[tuple[str, str, list[RankPod]]]:
        """Return namespace, job uid and pods of every job that is not known and has pods that our finalizer holds."""
        unknown = self._pods_by_job_uid.keys() - self._key_by_uid.keys()
        held = {uid: [pod for pod in self._pods_by_job_uid[uid].values() if pod.held] for uid in sorted(unknown)}
        return [(*uid.split("/", 1), pods) for uid, pods in held.items() if pods]  # type: ignore[misc]

    def vanished(self, job: Json, attempt: int) -> frozenset[int]:
        """Return the ranks of that attempt whose pod was seen and is gone, but for those that had succeeded."""
        return of_attempt(self._vanished_by_job_uid, _uid(job), attempt)

    def situation(self, job: JobRecord, *, epoch: int | None = None) -> Situation:
        """Return what the life cycle looks at: the job as it was read, its pods and their nodes as they are now."""
        pods = self.pods_of(job.json)
        nodes, told = {pod.node for pod in pods if pod.node}, job.told
        return Situation(
            terms=job.terms,
            generation=job.generation,
            progress=job.progress,
            held=job.is_held,
            deleting=job.is_deleted,
            orphaning=job.is_orphaning,
            placement=self._deadlines.local(_uid(job.json), job.placement, self._clock()),
            epoch=epoch,
            pods=tuple(sorted(pods, key=lambda pod: (pod.attempt, pod.rank, pod.uid))),
            room=self._unbound.room(_uid(job.json)),
            vanished=self.vanished(job.json, job.progress.attempt),
            seen_succeeded=of_attempt(self._succeeded_by_job_uid, _uid(job.json), job.progress.attempt),
            unready_since_s=self.nodes.unready_since_s(nodes),
            given_up=self.nodes.given_up(nodes),
            cordoned=self.suspicion.until_s,
            ended_cordons=self.suspicion.ended,
            braked=self.nodes.is_braked(),
            outages=self.nodes.outages(nodes),
            boots=self.nodes.boots(nodes),
            converged=job.converged,
            answered=told.answer,
            saved_s=told.saved_s,
            is_done=told.done_share == 1.0,
            untuned=self.agents.why_untuned(job),
            found_s=self._deadlines.found_s(_uid(job.json)),
        )

    def wake_waiting(self) -> None:
        """Have every job that waits for a placement looked at again."""
        for key in [key for key, job in self.jobs.by_key.items() if job["status"]["phase"] == Phase.QUEUED.value]:
            self._wake_soon(key)

    async def read_pods_again(self, job: JobRecord) -> None:
        """Bring the job's pods up to date from a consistent list, also those that are gone. Raises Outage."""
        known = self.pods.newest
        listing = await self._client.list_pages(job.pods_path, {"labelSelector": f"{LABEL_JOB_UID}={job.uid}"})
        version = self.pods.put_list(listing, known)
        for key in self._pods_by_job_uid.get(_uid(job.json), {}).keys() - {key_of(pod) for pod in listing["items"]}:
            drop_older(self.pods, self.pods.by_key[key], version)

    async def read_job_again(self, key: str) -> None:
        """Bring the job up to date; drop it if it is gone. Raises Outage."""
        try:
            self.jobs.put_again(await self._client.get(job_path(key)))
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
            await self.listing.wait()
            await asyncio.sleep(LISTING_S)
            while (left_s := self._listed_s + LISTING_S - self._clock()) > 0.001:
                await asyncio.sleep(left_s)
            self.listing.clear()
            try:
                await self._drop_unlisted_jobs()
            except CodaError as error:
                log.info("%s: %s", JOBS_PATH, error)
                self.listing.set()

    async def _drop_unlisted_jobs(self) -> None:
        """A function of its own: inside the loop above a page of the list would stay in memory until the next list."""
        present: set[str] = set()
        version = 0
        async for page in self._client.pages(JOBS_PATH):
            version = int(page["metadata"]["resourceVersion"])
            present |= {_uid(job) for job in page.get("items") or ()}
        for job in [job for job in self.jobs.by_key.values() if _uid(job) not in present]:
            drop_older(self.jobs, job, version)
        present |= {_uid(job) for job in self.jobs.by_key.values()}
        for uid in self._key_by_uid.keys() - present:
            self._forget_uid(uid)

    def _forget_uid(self, uid: str) -> None:
        self._key_by_uid.pop(uid, None)
        self.times.forget(uid.partition("/")[2], self._clock())
        self.failed_jobs.forget(uid.partition("/")[2])
        self._deadlines.forget(uid)
        self._vanished_by_job_uid.pop(uid, None)
        self._succeeded_by_job_uid.pop(uid, None)

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        if old is not None and (new is None or _uid(new) != _uid(old)):
            self._forget_uid(_uid(old))
        if new is None:
            self.admission_waiters.discard(key)
            self._packed_by_key.pop(key, None)
        else:
            self._see_deadlines(old, new)
            self._packed_by_key[key] = packed_job(shallow(new)[0])
            known = self.jobs.by_key[key] = KnownJob(new)
            self._key_by_uid.setdefault(known.uid, key)
            self.learned_cores.learn_from(new)
            self.failed_jobs.see(new, self._clock())
            self.times.see(new["metadata"]["uid"], new.get("status") or {}, self._clock())
            if known.is_finished:
                self._forget_past(known.uid)
        self._wake(key)

    def _forget_past(self, job_uid: str) -> None:
        """Of a finished job's pods nothing is needed but of those that may still run or are held."""
        self._vanished_by_job_uid.pop(job_uid, None)
        self._succeeded_by_job_uid.pop(job_uid, None)
        for key, pod in [*self._pods_by_job_uid.get(job_uid, {}).items()]:
            if self._is_past(job_uid, pod):
                self._take_out(key, job_uid)
                self.pods.forget(key)

    def _is_past(self, job_uid: str, pod: RankPod) -> bool:
        """True for an ended pod that nobody needs: our finalizer is lifted, and no job under way is known to own it.

        A replica that does not lead knows no job. Where the absence of such a pod would matter, a list is read."""
        return pod.ended and not pod.held and not self._is_under_way(job_uid)

    def _is_under_way(self, job_uid: str) -> bool:
        job = self.jobs.by_key.get(self._key_by_uid.get(job_uid, ""))
        return isinstance(job, KnownJob) and job.uid == job_uid and not job.is_finished

    def _held_part(self, pod: Json) -> Json | None:
        """Return what the cache holds of a pod. One that is past comes back only if it changes, or by a list."""
        job_uid, key = _job_uid(pod), key_of(pod)
        known = self._pods_by_job_uid.get(job_uid, {}).get(key)
        if known is not None and not self._is_past(job_uid, known):
            return pod_of_job(pod)
        self._take_out(key, job_uid)
        return None

    def _see_deadlines(self, old: Json | None, new: Json) -> None:
        status = new.get("status") or {}
        placement = None if status.get("phase") in FINISHED_PHASES else placement_from_json(status)
        self._deadlines.see(_uid(new), placement, self._clock(), in_the_middle=old is None)

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        pod_now = None
        if new is not None:
            known = self._pods_by_job_uid.get(_job_uid(new), {}).get(key)
            seen_s = self._pods_gap.seen_until_s(self.pods)
            pod_now = rank_pod_from_json(new, now_s=self._clock(), before=known, seen_until_s=seen_s)
            self._unbound.see(_job_uid(new), pod_now, known)
        if old is not None:
            stays = new is not None and _job_uid(new) == _job_uid(old)
            self._remove_pod(key, _job_uid(old), pod_now if stays else None)
        if new is not None and pod_now is not None:
            self._pods_by_job_uid.setdefault(_job_uid(new), {})[key] = pod_now
            if pod_now.node:
                self._job_uid_by_pod_by_node.setdefault(pod_now.node, {})[key] = _job_uid(new)
        if pod_now is None or pod_now.ended:
            self.admission_waiters.on_freed(key.partition("/")[0])
        for uid in {_job_uid(item) for item in (old, new) if item is not None}:
            self._wake_job(uid)

    def _remove_pod(self, key: str, job_uid: str, pod_now: RankPod | None) -> None:
        """Forget a pod as it was. If the rank has lost it, remember that the rank had one."""
        pod = self._take_out(key, job_uid)
        if pod is None:
            return
        if pod_now is None:
            self._unbound.see(job_uid, None, pod)
        was = pod.uid, pod.attempt, pod.rank
        is_same = pod_now is not None and (pod_now.uid, pod_now.attempt, pod_now.rank) == was
        if not is_same and self._is_under_way(job_uid) and pod.owned and pod.named:
            succeeded = pod.state is PodState.SUCCEEDED
            note_gone(self._succeeded_by_job_uid if succeeded else self._vanished_by_job_uid, job_uid, pod)

    def _take_out(self, key: str, job_uid: str) -> RankPod | None:
        """Remove a pod from the maps; return it as it was known."""
        pods = self._pods_by_job_uid.get(job_uid, {})
        if (pod := pods.pop(key, None)) is None:
            return None
        if not pods:
            del self._pods_by_job_uid[job_uid]
        if pod.node:
            self._remove_from_node(pod.node, key)
        return pod

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
