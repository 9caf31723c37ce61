"""What one replica knows of the cluster: caches that update the state and the guard, and wake the planner.

Every replica keeps all of it at all times, so that a new leader can answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from coda.model import NOTHING, Job, JobId, Placement, Resources
from coda.model.job import WriteTrouble
from coda.model.live_placement import growth_by_node, held_growth, is_waiting, open_wish
from coda.placements import awaits_decision
from coda.placements.lingering_use import SETTLE_S
from coda.placements.review import fits_at_once
from coda.policy.priorities import PriorityRule
from coda_extender.cluster.daemon_gaps import DaemonGaps
from coda_extender.cluster.ending_gangs import EndingGangs
from coda_extender.cluster.held_parts import part_of_pod
from coda_extender.guard.guard import Guard
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, key_of, metadata_only
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION
from coda_kube.objects.pods.cpu_job import pod_id_of
from coda_kube.objects.read import ENDED, Pod, id_of

VIRTUAL_CLUSTERS: Final = f"/apis/{API_VERSION}/virtualclusters"
ARRAY_QUOTAS: Final = f"/apis/{API_VERSION}/arrayquotas"
NODE_PROFILES: Final = f"/apis/{API_VERSION}/nodeprofiles"

_PAST_JOBS: Final = 10_000  # remembered at most; as many as the caches remember of late

_JOBS_AT_ONCE: Final = 100  # our choice: one or two milliseconds; then filter calls are answered

GATHER_S: Final = 0.04  # our choice: a waiting job does not notice it, and most changes are pods of others


class ExtenderCluster:
    """Caches, state and guard of one replica.

    `changed` is set when anything changes that a decision may depend on. `urgent` is set as well when somebody waits
    for this decision: a job entered the queue, wants other cores, or left the queue and still shows why it waited."""

    def __init__(
        self,
        client: Client,
        *,
        in_flight_limit_s: float,
        settle_s: float = SETTLE_S,
        gather_s: float = GATHER_S,
        clock: Callable[[], float] = time.monotonic,
        priorities: PriorityRule | None = None,
        shares_gpus: bool = False,
    ) -> None:
        """`shares_gpus`: what agents say of who has which GPU is read, too."""
        self.state = ClusterState(clock, priorities, client.clock)
        self.changed = asyncio.Event()
        self.urgent = asyncio.Event()
        self.guard = Guard(
            self.state,
            in_flight_limit_s=in_flight_limit_s,
            clock=clock,
            in_touch=self.is_in_touch,
            on_settled=self.changed.set,
        )
        self._endings = EndingGangs(self.state, clock, settle_s=settle_s)
        self._daemon_gaps = DaemonGaps(self.state, clock)
        self._gather_s = gather_s
        self.on_job_changed: Callable[[JobId], None] = lambda _job: None
        self._past_job_uids: dict[str, None] = {}  # of jobs that are gone or finished, oldest first
        self.stale_pending: set[JobId] = set()  # jobs that left the queue and still show why they waited
        self.jobs = WatchCache(
            client,
            f"/apis/{API_VERSION}/trainingjobs",
            listener=self._on_job,
            held_part=lambda job: job if id_of(job) in self.state.job_json_by_id else None,
        )
        self.pods = WatchCache(
            client,
            "/api/v1/pods",
            listener=self._on_pod,
            on_break=self.guard.outage,
            on_restored=self._begin_again,
            held_part=self._held_part_of_pod,
        )
        self.virtual_clusters = WatchCache(
            client, VIRTUAL_CLUSTERS, listener=self._on_virtual_cluster, may_be_missing=True, tells_edits=True
        )
        self.array_quotas = WatchCache(client, ARRAY_QUOTAS, listener=self._on_array_quota, may_be_missing=True)
        self._needed = (
            WatchCache(client, "/api/v1/nodes", listener=self._on_node, held_part=metadata_only),
            self.pods,
            WatchCache(client, "/api/v1/resourcequotas", listener=self._on_quota, held_part=metadata_only),
            WatchCache(client, "/apis/batch/v1/jobs", listener=self._on_batch_job, held_part=metadata_only),
            self.jobs,
        )
        profiles = WatchCache(
            client, NODE_PROFILES, listener=self._on_node_profile, held_part=metadata_only, may_be_missing=True
        )
        helpful = (self.virtual_clusters, self.array_quotas, *((profiles,) if shares_gpus else ()))
        self._caches = (*self._needed[:-1], *helpful, self.jobs)
        self._version = self.state.version
        self._short_timer: asyncio.TimerHandle | None = None
        self._hold_timer: asyncio.TimerHandle | None = None
        self._tenants_read = asyncio.Event()  # cleared while jobs count for a tenant that they do not have any more
        self._tenants_read.set()

    def caches(self) -> tuple[WatchCache, ...]:
        """Every cache."""
        return self._caches

    async def run(self) -> None:
        """Keep the caches up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for cache in self._caches:
                tasks.create_task(cache.run())

    async def wait_until_synced(self) -> None:
        """Wait until the whole cluster was seen once, but for quotas of Coda that cannot be read."""
        for cache in self._caches:
            await cache.synced.wait()
        self.state.tenants.note_losses()  # from now on they are seen as they happen

    def is_synced(self) -> bool:
        """True once the whole cluster was seen, but for quotas of Coda that cannot be read."""
        return all(cache.synced.is_set() for cache in self._caches)

    def is_in_touch(self) -> bool:
        """True while changes of the cluster are seen as they happen; those of Coda's quotas perhaps later."""
        return all(cache.in_touch.is_set() for cache in self._needed)

    async def wait_until_in_touch(self) -> None:
        """Wait until changes are seen again, and every job counts for its tenant."""
        while not (self.is_in_touch() and self._tenants_read.is_set()):
            await self._tenants_read.wait()
            for cache in self._needed:
                await cache.in_touch.wait()

    def awaits_decision(self, *, epoch: int, now_s: float = 0.0) -> bool:
        """True if there is anything to decide. If not, no change of pods, nodes or quotas is worth a cycle."""
        return bool(self.stale_pending) or any(
            awaits_decision(job, epoch=epoch, now_s=now_s) for job in self.state.starting()
        )

    def held_back(self) -> dict[str, Resources]:
        """Per node, what must not be given away for a moment: of ending attempts, for pods of DaemonSets that are about
        to come, and devices that it lacks."""
        return _summed(self._held_of_pods(), self.state.short_nodes.missing_by_name)

    def _held_of_pods(self, names: Collection[str] | None = None) -> dict[str, Resources]:
        return _summed(self._endings.held_by_node(), self._daemon_gaps.held_by_node(names))

    def fits_at_once(self, job: Job, nodes: Sequence[str]) -> bool:
        """True if the ranks of a waiting job may start on these nodes now, beside everything that is known."""
        names = set(nodes)
        node_by_name = {name: node for name in names if (node := self.state.node(name)) is not None}
        return fits_at_once(job, nodes, node_by_name, self._free_by_node(names))

    def may_grow(self, job_id: JobId, cores: int) -> bool:
        """True if each rank of a running job may have so many cores now, beside everything that is known."""
        job = self.state.job(job_id)
        growth, held = (growth_by_node(job, cores), held_growth(job)) if job is not None else ({}, {})
        free = self._free_by_node(growth.keys()) if growth else {}
        return all(name in free and cpu_m <= free[name].cpu_m + held.get(name, 0) for name, cpu_m in growth.items())

    def _free_by_node(self, names: Collection[str]) -> dict[str, Resources]:
        """What is free on these nodes beside everything that is known; a node is absent if that is not known now."""
        free, held = self.guard.free_beside_all(names), self._held_of_pods(names)
        return {name: amount - held.get(name, NOTHING) for name, amount in free.items()}

    def next_expiry_in_s(self) -> float | None:
        """How long until time alone frees something in flight or held back; None where nothing is."""
        expiries_s = (
            self.guard.in_flight.next_expiry_in_s(),
            self._endings.next_expiry_in_s(),
            self._daemon_gaps.next_expiry_in_s(),
        )
        return min((expiry_s for expiry_s in expiries_s if expiry_s is not None), default=None)

    async def gather_changes(self) -> None:
        """If there are changes, and none is urgent, wait a moment for more."""
        if self.changed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._gather_s):
                    await self.urgent.wait()

    def item_of(self, job: Job) -> Json | None:
        """The pod of a CPU job, if it is still the one that was decided about."""
        item = self.pod_item(job.id)
        return item if item is not None and item["metadata"]["uid"] == job.uid else None

    def pod_item(self, job: JobId) -> Json | None:
        """The pod that is this CPU job; None without one."""
        return self.pods.by_key.get(pod_id_of(job) or "") if job in self.state.cpu_jobs else None

    def begin_write(self, job: JobId, placement: Placement | None) -> int:
        """Count the placement as written from now on; see `ClusterState.begin_write`."""
        version = self.state.begin_write(job, placement)
        self.guard.job_changed(job)
        return version

    def end_write_in(self, job: JobId, version: int, delay_s: float) -> None:
        """The write to that version is not known to have worked: count it no more after the delay."""
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self._end_write, job, version)
        else:
            self._end_write(job, version)

    def set_unwritable(self, job: JobId, trouble: WriteTrouble | None) -> None:
        """Leave the job out of decisions from now on, or no longer."""
        self.state.set_unwritable(job, trouble)
        self._note_job(job)

    def set_evicted(self, job: JobId, *, is_evicted: bool) -> None:
        """Count a CPU job as stopped from now on, or no longer."""
        self.state.set_evicted(job, is_evicted=is_evicted)
        self._note_job(job)

    def read_controllers(self, controllers: Collection[str]) -> None:
        """Read the CPU jobs of these controllers again, see `CpuJobs.of_controllers`."""
        self.state.read_jobs(self.state.cpu_jobs.of_controllers(controllers))
        self._note_change()

    def void_placement(self, job: JobId, plan_id: str) -> None:
        """Count the placement no more, though the object shows it."""
        self.state.void_placement(job, plan_id)
        self._note_job(job)

    def _end_write(self, job: JobId, version: int) -> None:
        self.state.end_write(job, version)
        self._note_job(job)

    def _note_job(self, job: JobId) -> None:
        self.guard.job_changed(job)
        self._note_change()

    def _on_node(self, old: Json | None, new: Json | None) -> None:
        self.state.on_node(old, new)
        if self._note_change():
            self.guard.node_changed(key_of(new or old or {}))
        self._watch_short_nodes()

    def _watch_short_nodes(self) -> None:
        over_in_s, loop = self.state.short_nodes.next_over_in_s(), asyncio.get_running_loop()
        if over_in_s is None:
            return
        if self._short_timer is not None:
            if self._short_timer.when() <= loop.time() + over_in_s + 0.02:
                return
            self._short_timer.cancel()
        self._short_timer = loop.call_later(over_in_s + 0.01, self._end_short_nodes)

    def _end_short_nodes(self) -> None:
        self._short_timer = None
        for name in self.state.end_short_nodes():
            self.guard.node_changed(name)
        self._note_change()
        self._watch_short_nodes()

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        before = self.state.pod_by_id.get(key)
        self.state.on_pod(old, new)
        after = self.state.pod_by_id.get(key)
        self._endings.observe(before, after)
        self._daemon_gaps.observe(before, after, old, new)
        self.guard.pod_changed(before, after, old, new)
        if after is not None and after.ended and self._is_past(after):
            self.state.forget_pod(key)
        self._note_change()

    def _begin_again(self) -> None:
        """The API server's data come from a backup: finished jobs and their ranks may run again."""
        self.guard.begin_again()
        self.jobs.forget_ends()
        self._past_job_uids.clear()

    def _held_part_of_pod(self, pod: Json) -> Json | None:
        """An ended rank counts as bound until its job has finished; of any other ended pod nothing is needed."""
        known = self.state.pod_by_id.get(key_of(pod))
        if (pod.get("status") or {}).get("phase") not in ENDED:
            return part_of_pod(pod, is_cpu_job=known is not None and known.cpu_job is not None)
        return metadata_only(pod) if known is not None else None

    def _is_past(self, ended: Pod) -> bool:
        """By uid: a job that was submitted again under its name may not be seen yet when a rank of it ends."""
        return ended.member is None or ended.cpu_job is not None or ended.member.job_uid in self._past_job_uids

    def _note_past(self, uid: str) -> None:
        self._past_job_uids[uid] = None
        if len(self._past_job_uids) > _PAST_JOBS:
            del self._past_job_uids[next(iter(self._past_job_uids))]

    def _forget_ended_pods(self, job: Json) -> None:
        for key in self.state.gang_pods.ended((id_of(job), job["metadata"]["uid"])):
            self.state.forget_pod(key)
            self.pods.forget(key)

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        self.state.on_job(old, new)
        job = id_of(new or old or {})
        self.guard.job_changed(job)
        self.on_job_changed(job)
        if old is not None:
            self._note_past(old["metadata"]["uid"])
        if new is not None and job not in self.state.job_json_by_id:
            self._note_past(new["metadata"]["uid"])
            self._forget_ended_pods(new)
        elif new is not None:  # one that failed for its template may be mended, and run
            self._past_job_uids.pop(new["metadata"]["uid"], None)
        if new is not None and _shows_stale_pending(new):
            self.stale_pending.add(job)
            self._set_urgent()
        else:
            self.stale_pending.discard(job)
        self._watch_holds()
        known = self.state.job(job)
        if self._note_change() and known is not None and (is_waiting(known) or open_wish(known) is not None):
            self._set_urgent()

    def _watch_holds(self) -> None:
        over_in_s = self.state.local_times.next_hold_over_in_s() if self._hold_timer is None else None
        if over_in_s is not None:
            self._hold_timer = asyncio.get_running_loop().call_later(over_in_s + 0.01, self._end_holds)

    def _end_holds(self) -> None:
        """Nobody withholds for ever: the agent of a search may be gone."""
        self._hold_timer = None
        over = self.state.local_times.pop_holds_over()
        self.state.read_jobs(over)
        for job in over:
            self.guard.job_changed(job)
        self._note_change()
        self._watch_holds()

    def _on_batch_job(self, old: Json | None, new: Json | None) -> None:
        self.state.on_batch_job(old, new)
        self._note_change()

    def _on_quota(self, old: Json | None, new: Json | None) -> None:
        self.state.on_quota(old, new)
        self._note_change()

    def _on_virtual_cluster(self, old: Json | None, new: Json | None) -> None:
        self.state.on_virtual_cluster(old, new)
        self._note_change()
        if self.virtual_clusters.synced.is_set():
            asyncio.get_running_loop().call_soon(self.state.tenants.note_losses)
        if self.state.tenants.has_outdated() and self._tenants_read.is_set():
            self._tenants_read.clear()
            asyncio.get_running_loop().call_soon(self._read_tenants)

    def _read_tenants(self) -> None:
        """Between two steps filter calls are answered."""
        if self.state.read_tenants(_JOBS_AT_ONCE):
            asyncio.get_running_loop().call_soon(self._read_tenants)
        else:
            self._tenants_read.set()
        self._note_change()

    def _on_array_quota(self, old: Json | None, new: Json | None) -> None:
        self.state.on_array_quota(old, new)
        self._note_change()

    def _on_node_profile(self, old: Json | None, new: Json | None) -> None:
        self.state.on_node_profile(old, new)
        self._note_change()

    def _set_urgent(self) -> None:
        self.urgent.set()
        self.changed.set()

    def _note_change(self) -> bool:
        changed = self.state.version != self._version
        if changed:
            self._version = self.state.version
            self.changed.set()
        return changed


def _summed(one: Mapping[str, Resources], two: Mapping[str, Resources]) -> dict[str, Resources]:
    return {name: one.get(name, NOTHING) + two.get(name, NOTHING) for name in (*one, *two)}


def _shows_stale_pending(job: Json) -> bool:
    """True for a job that shows a wait reason but waits no more: it is suspended, launched or finished."""
    status, metadata = job.get("status") or {}, job["metadata"]
    return bool(status.get("pending")) and status.get("phase") != "Queued" and "deletionTimestamp" not in metadata
