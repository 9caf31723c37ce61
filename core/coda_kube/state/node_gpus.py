"""Who has which GPU whole, and who has no room beside them: NodeProfiles, joined with the pods that are there.

An agent's word is believed of pods that are bound to its node, and of nothing else. What it says of a pod that has gone
counts no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from coda.model.job import Job, JobId
from coda.model.world import GpuUse
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import Pod

_MOST_GPUS: Final = 64
_MOST_BYTES: Final = 1 << 50


class NodeGpus:
    """The GPUs of all nodes whose agents number them. `pod_by_uid`: the pods of the cluster, kept by somebody else."""

    def __init__(self, pod_by_uid: Mapping[str, Pod], outdated: Callable[[JobId], None]) -> None:
        """`outdated`: takes a job of which other ranks are crowded out than before."""
        self._pod_by_uid = pod_by_uid
        self._outdate = outdated
        # By node and uid of who is crowded out: the uids of the pods that wait for it, which have that GPU whole.
        self._crowded_by_node: dict[str, dict[str, tuple[str, ...]]] = {}
        self._rows_by_node: dict[str, tuple[Json, ...]] = {}
        self._uses_by_node: dict[str, tuple[GpuUse, ...]] = {}
        self._outdated: set[str] = set()

    def note_profile(self, node: str, profile: Json | None) -> bool:
        """Take what the agent says now; None: its profile is gone. True if anything of it is new."""
        rows = gpu_rows(profile or {})
        if rows == self._rows_by_node.get(node, ()):
            return False
        self._rows_by_node[node] = rows
        if not rows:
            del self._rows_by_node[node]
        self._outdated.add(node)
        before = self._crowded_by_node.pop(node, {})
        crowded = {
            uid: tuple(row["podUIDs"]) if "ownerWaits" in row else ()
            for row in rows
            for uid in row.get("crowdedOutPodUIDs", ())
        }
        if crowded:
            self._crowded_by_node[node] = crowded
        self._outdate_jobs_of([uid for uid, _ in before.items() ^ crowded.items()])
        return True

    def note_pods(self, *pods: Pod | None) -> None:
        """Note that these pods came, changed or went."""
        nodes = {pod.node for pod in pods if pod is not None and pod.node in self._rows_by_node}
        self._outdated.update(node for node in nodes if node is not None)
        for crowded in [self._crowded_by_node.get(node or "", {}) for node in nodes]:
            self._outdate_jobs_of([uid for uid, waiting in crowded.items() if waiting])

    def with_crowded(self, job: Job, pods: Mapping[str, Pod]) -> Job:
        """Return the job with those of its ranks that are crowded out, by their `pods`. O(pods), if anybody is."""
        if not self._crowded_by_node and not job.crowded:
            return job
        told = [(pod, self._crowded_by_node.get(pod.node or "", {}).get(pod.uid)) for pod in pods.values()]
        awaited_by_rank = {
            one.rank: any(self._can_wait(uid, pod.node) for uid in waiting)
            for pod, waiting in told
            if waiting is not None and (one := pod.member) and one.attempt == job.attempt and one.rank in job.bound
        }
        crowded, awaited = frozenset(awaited_by_rank), any(awaited_by_rank.values())
        same = (crowded, awaited) == (job.crowded, job.awaited)
        return job if same else replace(job, crowded=crowded, awaited=awaited)

    def uses(self) -> dict[str, tuple[GpuUse, ...]]:
        """Return the GPUs by node name. A node of which nothing changed has the same object. O(nodes that changed)."""
        while self._outdated:
            node = self._outdated.pop()
            rows = self._rows_by_node.get(node, ())
            uses = tuple([self._use_of(node, row) for row in rows])
            if uses:
                self._uses_by_node[node] = uses
            else:
                self._uses_by_node.pop(node, None)
        return self._uses_by_node.copy()

    def _outdate_jobs_of(self, uids: Iterable[str]) -> None:
        for pod in [self._pod_by_uid.get(uid) for uid in uids]:
            if pod is not None and pod.member is not None:
                self._outdate(pod.member.job)

    def _is_there(self, uid: str, node: str | None) -> bool:
        pod = self._pod_by_uid.get(uid)
        return pod is not None and pod.node == node and not pod.ended

    def _can_wait(self, uid: str, node: str | None) -> bool:
        """A pod that is being deleted has its GPU until it ends, and needs no more of it."""
        return self._is_there(uid, node) and not self._pod_by_uid[uid].terminating

    def _use_of(self, node: str, row: Json) -> GpuUse:
        there = [self._pod_by_uid[uid] for uid in row["podUIDs"] if self._is_there(uid, node)]
        use = GpuUse(index=row["index"], is_taken=bool(there), memory_bytes=row.get("memoryBytes"))
        member = there[0].member if len(there) == 1 and there[0].cpu_job is None else None
        if member is None:
            return use
        return GpuUse(
            index=use.index,
            is_taken=True,
            job=member.job,
            attempt=member.attempt,
            rank=member.rank,
            duty=None if "ownerWaits" in row else row.get("utilization"),  # nobody joins whom others just make room for
            peak_bytes=row.get("peakMemoryBytes"),
            memory_bytes=use.memory_bytes,
            is_heard=row.get("ownerHeard", True),
        )


def gpu_rows(profile: Json) -> tuple[Json, ...]:
    """Return what is read of a NodeProfile: its GPUs with a number, whose pods are told. Senseless values are out."""
    rows = [_row(gpu) for gpu in ((profile.get("status") or {}).get("gpus") or ())[:_MOST_GPUS]]
    return tuple([row for row in rows if row is not None])


def _row(gpu: Json) -> Json | None:
    index, pods = gpu.get("index"), gpu.get("podUIDs")
    if not _is_within(index, 0, _MOST_GPUS - 1) or pods is None:
        return None
    row: Json = {"index": index, "podUIDs": [str(uid) for uid in pods]}
    if crowded := gpu.get("crowdedOutPodUIDs"):
        row["crowdedOutPodUIDs"] = [str(uid) for uid in crowded]
        row |= {"ownerWaits": True} if gpu.get("ownerWaits") is True else {}
    row |= {"ownerHeard": False} if gpu.get("ownerHeard") is False else {}
    amounts = {name: gpu.get(name) for name in ("memoryBytes", "peakMemoryBytes")}
    row |= {name: amount for name, amount in amounts.items() if _is_within(amount, 1, _MOST_BYTES)}
    duty = gpu.get("utilization")
    return row | ({"utilization": duty} if _is_within(duty, 0, 1) else {})


def _is_within(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
