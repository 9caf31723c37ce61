"""Why CPU jobs wait, as Events. Pods of one owner are a line: its first pod speaks for all, and so does their Job.

A pod has no status field of ours, and a Job may have 10 000 pods: so not each of them is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from coda.model import JobId
from coda.model.decision import WaitReason
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.pod_events import PodEvents
from coda_extender.planner_process import ChangedRefusals
from coda_kube.api.client import Client
from coda_kube.objects.pods.cpu_job import pod_id_of
from coda_kube.objects.read import Pod

LOOK_EVERY_S: Final = 2.0
"""What waits for less than that is not told: most pods start at once. Our choice."""

AGAIN_AFTER_S: Final = 60.0
"""Between two Events of one line that differ in numbers only. Our choice."""

MOST_AT_ONCE: Final = 20
"""Lines told in one look; the others have their turn later. Our choice."""


class _Line(NamedTuple):
    first: Pod
    reason: WaitReason
    pods: int


class _Told(NamedTuple):
    reason: WaitReason
    told_s: float


class PodReasons:
    """Keeps the refusals of CPU jobs, and posts what changed."""

    def __init__(self, client: Client, cluster: ExtenderCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._events = PodEvents(client)
        self._reason_by_job: dict[JobId, WaitReason] = {}
        self._seen: set[str] = set()  # the lines of the last look
        self._told: dict[str, _Told] = {}  # by line

    def change_refusals(self, changes: ChangedRefusals) -> None:
        """Take over what changed. O(jobs that changed)."""
        for _, reason, jobs in changes.groups:
            for job in jobs:
                if pod_id_of(job) is not None:
                    self._reason_by_job[job] = reason
        for job in changes.gone:
            self._reason_by_job.pop(job, None)

    def forget(self) -> None:
        """Forget all refusals: they are told again, or by another leader."""
        self._reason_by_job.clear()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.tell()

    def tell(self) -> None:
        """Post what changed since it was told. O(CPU jobs that wait)."""
        now_s, lines = self._clock(), self._lines(self._reason_by_job.items())
        due = [key for key, line in lines.items() if key in self._seen and self._is_due(key, line, now_s)]
        for key in due[:MOST_AT_ONCE]:
            self._told[key] = _Told(lines[key].reason, now_s)
            self._post(lines[key])
        self._seen = set(lines)
        for key in [key for key, told in self._told.items() if key not in lines]:
            if now_s > self._told[key].told_s + AGAIN_AFTER_S:
                del self._told[key]

    def _is_due(self, key: str, line: _Line, now_s: float) -> bool:
        told = self._told.get(key)
        if told is None or told.reason.code is not line.reason.code:
            return True
        return told.reason != line.reason and now_s > told.told_s + AGAIN_AFTER_S

    def _lines(self, refusals: Iterable[tuple[JobId, WaitReason]]) -> dict[str, _Line]:
        lines: dict[str, _Line] = {}
        for job, reason in refusals:
            if job not in self._cluster.state.cpu_jobs:
                continue
            pod = self._cluster.state.cpu_jobs.pod(job)
            owner = pod.cpu_job.controller[1] if pod.cpu_job is not None else ""
            key = f"{pod.id.partition('/')[0]}/{owner or pod.uid}"  # an owner is of the pod's namespace
            line = lines.get(key)
            if line is None or _place(pod) < _place(line.first):
                lines[key] = _Line(pod, reason, 1 if line is None else line.pods + 1)
            else:
                lines[key] = line._replace(pods=line.pods + 1)
        return lines

    def _post(self, line: _Line) -> None:
        item = self._cluster.pods.by_key.get(line.first.id)
        if item is None:
            return
        code, message = line.reason.code.value, line.reason.message
        others = f" (pods of its owner that wait: {line.pods})" if line.pods > 1 else ""
        self._events.post(item, code, f"waits: {message}{others}")
        owners = item["metadata"].get("ownerReferences") or ()
        job = next((owner for owner in owners if owner.get("controller") and owner["kind"] == "Job"), None)
        if job is not None:
            about = job | {"namespace": item["metadata"]["namespace"]}
            self._events.post_about(about, code, f"{message} (pods that wait: {line.pods})")


def _place(pod: Pod) -> tuple[float, str]:
    return (pod.cpu_job.created_s if pod.cpu_job is not None else 0.0, pod.id)
