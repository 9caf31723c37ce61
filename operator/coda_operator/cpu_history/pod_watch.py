"""Watches the CPU jobs of the cluster, and keeps a record of each that ended until it is stored.

Every replica watches. The one that leads writes; the others keep what ended lately, so that a fail-over loses nothing
that one of them saw. A pod that ends and goes while no replica watches is in no record.
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

KEPT_S: Final = 600.0
"""A replica that does not lead keeps the record of a pod that has gone for so long: a fail-over takes 15 s, and one
with an operator that is started elsewhere minutes. Our choice."""

MOST_PENDING: Final = 50_000
"""Records that wait in the process, 25 MB; the oldest are lost beyond that. Our choice: an hour of a busy cluster."""


class CpuPodWatch:
    """CPU jobs as they are, and the records that are not stored. All methods are called on the event loop.

    `has_news` is set when a record comes."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, SeenPod] = {}  # the pods that exist, by key
        self._ended_s: dict[str, float] = {}  # of these, those that have ended, by key
        self._pending: dict[str, FinishedCpuJob] = {}  # by uid
        self._leads = False
        self.lost = 0  # records for which there was no place
        self.has_news = asyncio.Event()
        self.cache = WatchCache(client, "/api/v1/pods", listener=self._on_pod, query=QUERY, held_part=metadata_only)

    async def run(self) -> None:
        """Watch until cancelled."""
        await self.cache.run()

    def begin_term(self) -> None:
        """From now on this replica writes. Every pod that exists and has ended is told again: each counts once."""
        self._forget_old()  # whoever led has stored them
        self._leads = True
        for key, ended_s in self._ended_s.items():
            self._add(finished_cpu_job(self._seen[key], ended_s))
        self.has_news.set()

    def end_term(self) -> None:
        """Another replica writes now. What is not stored yet is kept for a while."""
        self._leads = False
        self._forget_old()

    def pending(self, most: int) -> list[FinishedCpuJob]:
        """Return records that wait, the oldest first."""
        return [job for job, _ in zip(self._pending.values(), range(most), strict=False)]

    @property
    def waiting(self) -> int:
        """How many records wait."""
        return len(self._pending)

    def settle(self, uid: str) -> None:
        """The record is stored, or never will be."""
        self._pending.pop(uid, None)

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
            del self._pending[next(iter(self._pending))]
            self.lost += 1
        self._pending[job.uid] = job
        self.has_news.set()

    def _forget_old(self) -> None:
        """The oldest come first, but for clocks that were set."""
        since_s = self._clock() - KEPT_S
        while self._pending and (first := next(iter(self._pending.values()))).ended_s < since_s:
            del self._pending[first.uid]
