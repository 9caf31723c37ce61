"""Foreign pods in flight: they passed the filter and may land on any of the nodes they were given.

This may be lost. A new leader counts every unbound pod as in flight instead, for a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from coda.model import NOTHING, Resources
from coda.placements import InFlight
from coda.placements.lingering_use import UNSEEN_S
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import Pod

Clock = Callable[[], float]
_NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    pod: InFlight
    version: int  # the pod's resourceVersion when it was filtered: older news of it says nothing
    until_s: float
    seen_until_s: float | None = None  # how long it counts once the watch shows its uid; None: it was shown


class InFlightPods:
    """Foreign pods in flight, by uid. `on_settled` is called when one leaves, except by a new filter call."""

    def __init__(self, clock: Clock, on_settled: Callable[[], None]) -> None:
        self.total: Resources = NOTHING  # the sum of all requests
        self.timed_out = 0
        self._clock = clock
        self._on_settled = on_settled
        self._entry_by_uid: dict[str, _Entry] = {}
        self._next_expiry_s = _NEVER_S  # no entry expires before

    def __len__(self) -> int:
        return len(self._entry_by_uid)

    def add(self, pod: InFlight, *, version: int, limit_s: float, is_seen: bool = True) -> None:
        """Count `pod` from now on, instead of an earlier entry of it.

        If no watch has shown its uid (`is_seen`), it counts for `UNSEEN_S` only, until one does: it may be made up."""
        self._expire()  # also where nobody asks what is in flight
        self._remove(pod.uid)
        seen_until_s = self._clock() + limit_s
        until_s = seen_until_s if is_seen else min(seen_until_s, self._clock() + UNSEEN_S)
        self._next_expiry_s = min(self._next_expiry_s, until_s)
        later_s = None if is_seen else seen_until_s
        self._entry_by_uid[pod.uid] = _Entry(pod=pod, version=version, until_s=until_s, seen_until_s=later_s)
        self.total = self.total + pod.request

    def settle(self, uid: str) -> None:
        """Count the pod no longer: it is known where it went, or that it goes nowhere."""
        if self._remove(uid):
            self._on_settled()

    def observe(self, before: Pod | None, after: Pod | None, old: Json | None, new: Json | None) -> None:
        """Settle a pod that was bound, ended, deleted, created again, or given up by kube-scheduler."""
        if before is not None and (after is None or after.uid != before.uid):
            self.settle(before.uid)
        entry = self._entry_by_uid.get(after.uid) if after is not None else None
        if after is None or entry is None:
            return
        if entry.seen_until_s is not None:
            entry = replace(entry, until_s=entry.seen_until_s, seen_until_s=None)
            self._entry_by_uid[after.uid] = entry
        if after.node or after.ended or (new is not None and _gave_up(entry, old, new)):
            self.settle(after.uid)
        elif new is not None and after.nominated_to is not None and _is_chosen(entry, before, after, new):
            self._narrow(entry, after.nominated_to)

    def pods(self) -> tuple[InFlight, ...]:
        """All pods in flight now."""
        self._expire()
        return tuple(entry.pod for entry in self._entry_by_uid.values())

    def others(self, uid: str) -> tuple[tuple[InFlight, ...], Resources]:
        """All pods in flight except `uid`, and the sum of their requests."""
        pods = self.pods()
        own = self._entry_by_uid.get(uid)
        if own is None:
            return pods, self.total
        return tuple(pod for pod in pods if pod.uid != uid), self.total - own.pod.request

    def next_expiry_in_s(self) -> float | None:
        """How long until the next entry expires; None if none does."""
        until_s = min((entry.until_s for entry in self._entry_by_uid.values()), default=_NEVER_S)
        return None if until_s == _NEVER_S else max(0.0, until_s - self._clock())

    def begin_again(self, limit_s: float) -> None:
        """Versions count from elsewhere, so that news of the pods may look old: none counts longer than this limit."""
        latest_s = self._clock() + limit_s
        for uid, entry in self._entry_by_uid.items():
            self._entry_by_uid[uid] = replace(entry, until_s=min(entry.until_s, latest_s))
        self._next_expiry_s = min(self._next_expiry_s, latest_s)

    def clear(self) -> None:
        """Forget all pods."""
        self._entry_by_uid.clear()
        self.total = NOTHING

    def _narrow(self, entry: _Entry, node: str) -> None:
        """kube-scheduler has chosen this node: count the pod there only, until it is bound or given up."""
        self._entry_by_uid[entry.pod.uid] = replace(entry, pod=replace(entry.pod, nodes=(node,)), until_s=_NEVER_S)
        self._on_settled()

    def _expire(self) -> None:
        now_s = self._clock()
        if now_s < self._next_expiry_s:
            return
        expired = [uid for uid, entry in self._entry_by_uid.items() if entry.until_s <= now_s]
        for uid in expired:
            self._remove(uid)
            self.timed_out += 1
        self._next_expiry_s = min((entry.until_s for entry in self._entry_by_uid.values()), default=_NEVER_S)
        if expired:
            self._on_settled()

    def _remove(self, uid: str) -> bool:
        entry = self._entry_by_uid.pop(uid, None)
        if entry is None:
            return False
        self.total = self.total - entry.pod.request if self._entry_by_uid else NOTHING
        return True


def _is_chosen(entry: _Entry, before: Pod | None, after: Pod, new: Json) -> bool:
    """True if this is news since the entry's filter call: an earlier choice of kube-scheduler says nothing."""
    is_news = before is None or before.nominated_to != after.nominated_to
    offered = entry.pod.nodes is None or after.nominated_to in entry.pod.nodes
    return is_news and offered and version_of(new) > entry.version


def _gave_up(entry: _Entry, old: Json | None, new: Json) -> bool:
    """True if PodScheduled became False, or False for a new reason, after this entry's filter call."""
    if version_of(new) <= entry.version:
        return False
    condition = _scheduled(new)
    return condition is not None and condition[0] == "False" and (old is None or condition != _scheduled(old))


def _scheduled(pod: Json) -> tuple[object, ...] | None:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled":
            return condition.get("status"), condition.get("reason"), condition.get("message")
    return None
