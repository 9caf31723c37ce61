"""What became of every attempt of every gang, from its pods alone: whole, rolled back, hit by a kubelet's refusal.

Fed with the changes of pods; talks to nobody and judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_RANK
from coda_lab.experiments.race.refusals import refusal_of


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt. Times are seconds since 1970 as seen by the watch; None: never."""

    job: str
    number: int
    bound: set[int] = field(default_factory=set)  # ranks that had a node at some time
    refused: dict[int, str] = field(default_factory=dict)  # rank -> the kubelet's reason
    live: set[str] = field(default_factory=set)  # pods that neither ended nor are being deleted
    first_bound_s: float | None = None
    whole_s: float | None = None  # when the last rank was bound
    first_refused_s: float | None = None
    no_longer_live_s: float | None = None  # when its last live pod ended or was deleted

    def partial_s(self, now_s: float) -> float:
        """How long some of its ranks, but not all, were bound while it lived."""
        if self.first_bound_s is None:
            return 0.0
        ends_s = self.whole_s or (now_s if self.live else self.no_longer_live_s) or now_s
        return max(0.0, ends_s - self.first_bound_s)

    def roll_back_s(self, now_s: float) -> float:
        """The time from the first refusal until none of its pods lived any more; 0 for an attempt without a refusal."""
        if self.first_refused_s is None:
            return 0.0
        ends_s = now_s if self.live or self.no_longer_live_s is None else self.no_longer_live_s
        return max(0.0, ends_s - self.first_refused_s)


class Attempts:
    """All attempts, by job and number. `replicas`: how many ranks the job has."""

    def __init__(self, replicas: Callable[[str], int], *, now: Callable[[], float] = time.time) -> None:
        self.by_key: dict[tuple[str, int], Attempt] = {}
        self._replicas = replicas
        self._now = now

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        pod = new or old or {}
        labels = pod["metadata"].get("labels") or {}
        if LABEL_JOB not in labels:
            return
        key = (labels[LABEL_JOB], int(labels[LABEL_ATTEMPT]))
        attempt = self.by_key.setdefault(key, Attempt(job=key[0], number=key[1]))
        rank = int(labels[LABEL_RANK])
        self._see_life(attempt, pod, is_there=new is not None)
        if pod["spec"].get("nodeName"):
            self._see_node(attempt, rank)
        reason = refusal_of(pod)
        if reason is not None and rank not in attempt.refused:
            attempt.refused[rank] = reason
            attempt.first_refused_s = attempt.first_refused_s or self._now()

    def _see_life(self, attempt: Attempt, pod: Json, *, is_there: bool) -> None:
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        name = pod["metadata"]["name"]
        if is_there and not ended and not pod["metadata"].get("deletionTimestamp"):
            attempt.live.add(name)
            return
        if name in attempt.live:
            attempt.live.remove(name)
            if not attempt.live:
                attempt.no_longer_live_s = self._now()

    def _see_node(self, attempt: Attempt, rank: int) -> None:
        if rank in attempt.bound:
            return
        attempt.bound.add(rank)
        attempt.first_bound_s = attempt.first_bound_s or self._now()
        if len(attempt.bound) == self._replicas(attempt.job):
            attempt.whole_s = self._now()

    @property
    def hit(self) -> tuple[Attempt, ...]:
        """The attempts that lost a rank to a kubelet's refusal."""
        return tuple(attempt for attempt in self.by_key.values() if attempt.refused)

    def longest_partial(self) -> Attempt | None:
        """The attempt that was partly bound for the longest time; None if no gang pod was ever bound."""
        now_s = self._now()
        bound = [attempt for attempt in self.by_key.values() if attempt.first_bound_s is not None]
        return max(bound, key=lambda attempt: attempt.partial_s(now_s), default=None)

    def slowest_roll_back_s(self) -> float | None:
        """The slowest roll-back of the hit attempts; None if none was hit."""
        now_s = self._now()
        return max((attempt.roll_back_s(now_s) for attempt in self.hit), default=None)
