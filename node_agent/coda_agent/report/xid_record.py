"""The Xids of this node that the NodeProfile tells, with the pods that had the GPU; kept over a restart of the agent.

Equal ones are one entry. The pods are those of the round before: when an Xid is read, its program may have ended. If
nobody had the GPU then, an error of the hardware is also that of the pods which the kubelet names soon after."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from coda.diagnosis.xids import XidKind, kind_of
from coda_agent.gpus.devices import GpuXid
from coda_agent.gpus.ownership import Ownership
from coda_agent.host import StateDir
from coda_agent.sensor import Senses
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds

log = logging.getLogger(__name__)

KEPT_S: Final = 6 * 3600.0
"""How long an Xid is told. As long as a failure counts against its node."""
MOST: Final = 32
"""Entries in the profile: those of hardware first, then the newest. Our choice: the profile stays short."""
MOST_PODS: Final = 16
OWNER_KNOWN_S: Final = 12.0
"""For so long an Xid of the hardware of a GPU that nobody had may get pods: a new one may fail before the kubelet has
said what it got. An Xid of a program may be that of a process which is gone. Our choice: longer than an answer of the
kubelet serves (`PodResources`)."""
Key = tuple[str, int, tuple[str, ...]]
"""Of an entry: GPU, Xid and pods."""
_NAME: Final = "xids.json"
_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEntry:
    """One error of one GPU (or MIG slice), of the same pods. Times are of the wall clock."""

    gpu: str
    xid: int
    pods: tuple[str, ...]  # uids
    first_s: float
    last_s: float
    count: int = 1

    @property
    def key(self) -> Key:
        """What makes two of them equal."""
        return self.gpu, self.xid, self.pods


class XidRecord:
    """What the agent tells of Xids. One thread at a time; it never raises."""

    def __init__(self, state_dir: StateDir, *, reads_only: bool) -> None:
        self._state_dir = state_dir
        self._reads_only = reads_only
        self._before: tuple[Ownership, ...] = ()
        self._unowned: list[tuple[float, GpuXid]] = []  # told without pods so far, and since when
        self._lacks: tuple[str, ...] = ()
        self.entries: tuple[XidEntry, ...] = self._load()

    def see(self, senses: Senses) -> bool:
        """Take in one round; True if what is told has changed, which `store` then writes down."""
        now_s, before, self._before = senses.at.wall_s, self._before, senses.ownerships or self._before
        for sentence in set(senses.gpus.xid_lacks) - set(self._lacks):
            log.warning("%s", sentence)
        self._lacks = senses.gpus.xid_lacks
        not_ahead = (_not_after(one, now_s) for one in self.entries)
        by_key = {one.key: one for one in not_ahead if now_s - one.last_s < KEPT_S}
        unowned, self._unowned = self._unowned, []
        for at_s, seen in unowned:
            if pods := _pods_of(seen, senses.ownerships):
                _take(by_key, seen)
                _put(by_key, seen, pods, at_s)
            elif abs(now_s - at_s) < OWNER_KNOWN_S:
                self._unowned.append((at_s, seen))
        for seen in senses.gpus.xids:
            pods = _pods_of(seen, before) or _pods_of(seen, senses.ownerships)
            _put(by_key, seen, pods, now_s)
            if not pods and kind_of(seen.xid) is XidKind.HARDWARE:
                self._unowned.append((now_s, seen))
        told = sorted(by_key.values(), key=_weight)[:MOST]
        changed = tuple(told) != self.entries
        self.entries = tuple(told)
        return changed

    def store(self) -> None:
        """Write the entries down, so that the next agent tells them too."""
        if self._reads_only:
            return
        try:
            self._state_dir.replace(_NAME, json.dumps([asdict(one) for one in self.entries]).encode())
        except OSError as error:
            log.warning("the Xids that were seen are not kept over a restart: %s", error)

    def _load(self) -> tuple[XidEntry, ...]:
        try:
            kept = json.loads(self._state_dir.read(_NAME, most_bytes=_MOST_BYTES) or b"[]")
            return tuple(map(_entry_from_json, kept))[:MOST]
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("the Xids that an earlier agent saw cannot be read: %s", error)
            return ()


def xids_json(entries: Iterable[XidEntry]) -> list[Json]:
    """Return `status.xids` of the NodeProfile."""
    return [
        {
            "gpu": one.gpu,
            "xid": one.xid,
            "count": min(one.count, 1 << 30),
            "firstTime": time_from_seconds(one.first_s),
            "time": time_from_seconds(one.last_s),
            "podUIDs": list(one.pods),
        }
        for one in entries
    ]


def _not_after(one: XidEntry, now_s: float) -> XidEntry:
    """The clock may have been ahead when the Xid came: nobody knows when that was, but it was not later than now."""
    if one.last_s <= now_s:
        return one
    return replace(one, first_s=min(one.first_s, now_s), last_s=now_s)


def _put(by_key: dict[Key, XidEntry], seen: GpuXid, pods: tuple[str, ...], at_s: float) -> None:
    entry = XidEntry(gpu=seen.uuid, xid=seen.xid, pods=pods, first_s=at_s, last_s=at_s)
    known = by_key.get(entry.key)
    if known is not None:
        by_key[entry.key] = replace(known, last_s=max(known.last_s, at_s), count=known.count + 1)
    else:
        by_key[entry.key] = entry
        log.warning("the GPU driver reported Xid %d of %s, pods %s", seen.xid, seen.uuid, ", ".join(pods))


def _take(by_key: dict[Key, XidEntry], seen: GpuXid) -> None:
    """Take one Xid out of those of nobody."""
    known = by_key.pop((seen.uuid, seen.xid, ()), None)
    if known is not None and known.count > 1:
        by_key[known.key] = replace(known, count=known.count - 1)


def _weight(one: XidEntry) -> tuple[bool, float, str, int, tuple[str, ...]]:
    return kind_of(one.xid) is not XidKind.HARDWARE, -one.last_s, one.gpu, one.xid, one.pods


def _pods_of(seen: GpuXid, ownerships: Sequence[Ownership]) -> tuple[str, ...]:
    """Return the pods that had the GPU, or the slice of it that the driver names; without a slice those of all."""
    return tuple(sorted({uid for one in ownerships if _is_at(seen, one) for uid in _uids(one)}))[:MOST_PODS]


def _is_at(seen: GpuXid, one: Ownership) -> bool:
    if one.place.gpu_uuid != seen.uuid:
        return False
    return seen.gpu_instance is None or one.gpu_instance is None or one.gpu_instance == seen.gpu_instance


def _uids(one: Ownership) -> Iterator[str]:
    for owner in one.owners:
        if owner.pod_uid is not None:
            yield owner.pod_uid


def _entry_from_json(kept: Any) -> XidEntry:
    return XidEntry(
        gpu=str(kept["gpu"]),
        xid=int(kept["xid"]),
        pods=tuple(map(str, kept["pods"]))[:MOST_PODS],
        first_s=float(kept["first_s"]),
        last_s=float(kept["last_s"]),
        count=int(kept["count"]),
    )
