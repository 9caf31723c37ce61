"""Which ranks of this node are told that they are to stop: each once, and again until it worked.

How long they have is counted by this machine's steady time, from when the announcement was seen: the operator's clock
and this node's may differ by more than a notice lasts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from coda_agent.cluster import LocalPod
from coda_kube.objects.pods.stops import Announcement

FOUND_SHARE: Final = 0.5
"""How much of its notice a rank has whose announcement is older than this process. Our choice: nobody knows."""


class StopTeller:
    """Remembers who was told, which costs nothing to forget: the file says it too."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}  # pod uid -> id of the announcement
        self._since_s: dict[tuple[str, str], float] = {}  # pod uid and id -> the earliest that it was announced
        self._looked_s: float | None = None  # when the pods were last surely known, by steady time

    def due(self, local: tuple[LocalPod, ...], now_s: float, age_s: float) -> tuple[LocalPod, ...]:
        """Return the running ranks that are to stop and were not told yet; all others that are gone are forgotten.

        `now_s`: steady time. `age_s`: seconds since `local` was surely right; infinite: it never was."""
        stops = [(pod.uid, pod.stop) for pod in local if pod.stop is not None]
        self._since_s = {
            (uid, stop.id): self._since_s.get((uid, stop.id), self._earliest_s(stop, now_s)) for uid, stop in stops
        }
        if age_s < math.inf:
            self._looked_s = now_s - age_s
        stopping = {pod.uid: pod for pod in local if pod.runs and pod.stop is not None}
        self._told = {uid: id_ for uid, id_ in self._told.items() if uid in stopping}
        return tuple(pod for uid, pod in stopping.items() if pod.stop and self._told.get(uid) != pod.stop.id)

    def left_s(self, pod: LocalPod, now_s: float) -> float:
        """Return how much of its notice a rank that is due surely has, in seconds; it may be negative."""
        if pod.stop is None:
            return 0.0
        return pod.stop.notice_s - (now_s - self._since_s[pod.uid, pod.stop.id])

    def take(self, due: tuple[LocalPod, ...], faults: Mapping[str, str]) -> tuple[str, ...]:
        """Note who was told. `faults`: by pod uid, "" for none. Return a sentence for each that was not."""
        for pod in due:
            if not faults[pod.uid] and pod.stop is not None:
                self._told[pod.uid] = pod.stop.id
        return tuple(f"{pod.id}: {faults[pod.uid]}" for pod in due if faults[pod.uid])

    def _earliest_s(self, stop: Announcement, now_s: float) -> float:
        """It is newer than the last look, at which nobody knew of it."""
        return self._looked_s if self._looked_s is not None else now_s - (1.0 - FOUND_SHARE) * stop.notice_s
