"""Watches the CPU jobs of the cluster, and keeps a record of each that ended until it is stored.

Every replica watches. The one that leads writes; the others keep what ended in the last hours, so that a fail-over
loses nothing that one of them saw, also while the store is away. A pod that ends and goes while no replica watches is
in no record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from coda.history.cpu_jobs import FinishedCpuJob
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, key_of, metadata_only
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID, SCHEDULER
from coda_operator.cpu_history.ended_pod import SeenPod, finished_cpu_job, seen_pod

QUERY: Final = {"fieldSelector": f"spec.schedulerName={SCHEDULER}", "labelSelector": f"!{LABEL_JOB_UID}"}

KEPT_S: Final = 12 * 3600.0
"""A replica that does not lead keeps the record of a pod for so long: whoever leads may not have stored it, if the
store is away, and may be gone. Our choice: a night."""

MOST_PENDING: Final = 50_000
"""Records that are kept in the process, 25 MB; beyond that the oldest go. Our choice: an hour of a busy cluster."""


class CpuPodWatch:
    """CPU jobs as they are, and the records that are not stored. All methods are called on the event loop.

    `has_news` is set when a record comes."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, SeenPod] = {}  # the pods that exist, by key
        self._ended_s: dict[str, float] = {}  # of these, those that have ended, by key
        self._pending: dict[str, FinishedCpuJob] = {}  # by uid
        self._leads = False
        self._unstored: set[str] = set()  # uids of those that came, or waited, while this replica led
        self.lost = 0  # of these, those that were dropped
        self.has_news = asyncio.Event()
        self.cache = WatchCache(client, "/api/v1/pods", listener=self._on_pod, query=QUERY, held_part=metadata_only)

    async def run(self) -> None:
        """Watch until cancelled."""
        await self.cache.run()

    def begin_term(self) -> None:
        """From now on this replica writes. Every pod that exists and has ended is told again: each counts once."""
        self._forget_old()  # another may have counted them, and forgotten that by now
        self._leads = True
        for key, ended_s in self._ended_s.items():
            self._add(finished_cpu_job(self._seen[key], ended_s))
        self._unstored.update(self._pending)
        self.has_news.set()

    def end_term(self) -> None:
        """Another replica writes now. What is not stored yet is kept for a while, and tried again if this one leads."""
        self._leads = False

    def pending(self, most: int) -> list[FinishedCpuJob]:
        """Return records that wait, the oldest first."""
        return [job for job, _ in zip(self._pending.values(), range(most), strict=False)]

    @property
    def waiting(self) -> int:
        """How many records wait to be stored; of a replica that does not lead, those that it could not store."""
        return len(self._pending) if self._leads else len(self._unstored)

    def settle(self, uid: str) -> None:
        """The record is stored, or never will be."""
        self._pending.pop(uid, None)
        self._unstored.discard(uid)

    def existing(self) -> frozenset[str]:
        """The uids of all pods that exist."""
        return frozenset([pod.uid for pod in self._seen.values()])

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        key, now_s = key_of(new or old or {}), self._clock()
        before = self._seen.get(key)
        if before is not None and (new is None or new["metadata"]["uid"] != before.uid):
            self._gone(key, before, now_s)
            before = None
        pod = None if new is None else seen_pod(new, now_s, before)
        if pod is None:
            self._seen.pop(key, None)
            self._ended_s.pop(key, None)
            return
        self._seen[key] = pod
        if pod.has_ended and key not in self._ended_s:
            # A pod that had ended before it was seen says when, by its node's clock.
            self._ended_s[key] = now_s if before is not None else min(now_s, pod.finished_s or now_s)
            if self._leads:
                self._add(finished_cpu_job(pod, self._ended_s[key]))

    def _gone(self, key: str, pod: SeenPod, now_s: float) -> None:
        del self._seen[key]
        ended_s = self._ended_s.pop(key, None)
        if ended_s is None:
            self._add(finished_cpu_job(pod, now_s))
        elif not self._leads and now_s < ended_s + KEPT_S:  # else whoever leads has stored it long ago
            self._add(finished_cpu_job(pod, ended_s))

    def _add(self, job: FinishedCpuJob) -> None:
        if job.uid in self._pending:
            return
        if not self._leads:
            self._forget_old()
        if len(self._pending) >= MOST_PENDING:
            self._drop(next(iter(self._pending)))
        self._pending[job.uid] = job
        if self._leads:
            self._unstored.add(job.uid)
        self.has_news.set()

    def _forget_old(self) -> None:
        """The oldest come first, but for clocks that were set."""
        since_s = self._clock() - KEPT_S
        while self._pending and (first := next(iter(self._pending.values()))).ended_s < since_s:
            self._drop(first.uid)

    def _drop(self, uid: str) -> None:
        del self._pending[uid]
        if uid in self._unstored:
            self._unstored.discard(uid)
            self.lost += 1
