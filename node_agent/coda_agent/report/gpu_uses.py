"""Who has which GPU whole, and how that pod uses it while it is alone there: what the planner asks before it lets an
opportunistic job onto it.

What is told moves in steps, so that a profile is not written for every breath of a job."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from coda.model.seats import SEAT
from coda.sharing.config import GIB
from coda_agent.gpus import GpuReading
from coda_agent.gpus.ownership import Belief, GpuOwner, Ownership
from coda_agent.sensor import Senses

MEAN_S: Final = 60.0
"""The time constant of the mean utilisation, and how long a pod must have been alone before it is told. Our choice: a
checkpoint or an evaluation is a part of it."""

LONGEST_S: Final = 10.0
"""The most that one round counts for: an agent that was held up knows nothing of the time between."""

_NOBODY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

STEP: Final = 0.1
STICKS: Final = 0.075
"""Another step is told once the mean is so far from the one that was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """The pods that have a GPU whole, by uid. `utilization` and `peak_bytes`: of the one that has it, None: not known.

    utilization: while it was alone on it, 0..1
    crowded_out: the pods on its seats that have no room beside these
    waits: these cannot go on before those have gone
    heard: the one that has it ended a mini-batch lately; None: not known"""

    pod_uids: tuple[str, ...]
    utilization: float | None = None
    peak_bytes: int | None = None
    crowded_out: tuple[str, ...] = ()
    waits: bool = False
    heard: bool | None = None


@dataclass(slots=True)
class _Owner:
    """One pod on one GPU, as long as it has it whole."""

    uid: str
    alone_s: float = 0.0
    mean: float = 0.0
    told: float | None = None
    peak_bytes: int = 0

    def note_share(self, share: float, passed_s: float) -> None:
        weight = 1.0 if self.alone_s == 0 else 1 - math.exp(-passed_s / MEAN_S)
        self.mean += weight * (share - self.mean)
        self.alone_s += passed_s
        if self.alone_s >= MEAN_S and (self.told is None or abs(self.mean - self.told) > STICKS):
            self.told = round(round(self.mean / STEP) * STEP, 1)

    def as_use(self) -> GpuUse:
        peak_bytes = math.ceil(self.peak_bytes / GIB) * GIB
        return GpuUse(pod_uids=(self.uid,), utilization=self.told, peak_bytes=peak_bytes or None)


@dataclass(slots=True)
class GpuUses:
    """Remembers from round to round. A new agent begins anew: it tells nothing of a GPU that is shared already."""

    _owners: dict[str, _Owner] = field(default_factory=dict)  # by UUID
    _uses: Mapping[str, GpuUse] = field(default_factory=dict)
    _round_s: float | None = None

    def see(
        self,
        senses: Senses,
        crowded_out: Mapping[str, tuple[str, ...]] = _NOBODY,
        awaited: Collection[str] = (),
        heard: Collection[str] | None = None,
    ) -> Mapping[str, GpuUse]:
        """Return who has each GPU whole, by UUID, after this round, and who is `crowded_out` there, by UUID. `awaited`:
        the UUIDs where somebody waits for that; `heard`: those whose pod ended a mini-batch lately, None: not known.

        Absent: GPUs in MIG mode, and those that a process uses which nobody explains. Of these only that somebody is
        crowded out is told, and by whom. While the kubelet does not answer, what was known stays: whoever reads it asks
        whether these pods are there."""
        now_s = senses.at.monotonic_s
        passed_s = 0.0 if self._round_s is None else min(LONGEST_S, now_s - self._round_s)
        self._round_s = now_s
        if not senses.are_grants_known:
            return _with(_with_heard(self._uses, heard), crowded_out, awaited)
        seated = _seated(senses)
        ownership_by_gpu = {one.place.gpu_uuid: one for one in senses.ownerships if one.place.instance_uuid is None}
        before, self._owners = self._owners, {}
        uses: dict[str, GpuUse] = {}
        disputed: dict[str, GpuUse] = {}
        for reading in senses.gpus.readings:
            uuid = reading.gpu.uuid
            ownership = ownership_by_gpu.get(uuid)
            if ownership is None or ownership.strangers or any(one.pod_uid is None for one in ownership.owners):
                if uuid in before:  # a newcomer, perhaps: the kubelet says a while later what it was given
                    self._owners[uuid] = before[uuid]
                if uuid in crowded_out and ownership is not None:
                    disputed[uuid] = GpuUse(pod_uids=_whole(ownership, seated))
                continue
            whole = _whole(ownership, seated)
            if len(whole) != 1:
                uses[uuid] = GpuUse(pod_uids=whole)
                continue
            known = before.get(uuid)
            owner = known if known is not None and known.uid == whole[0] else _Owner(whole[0])
            self._owners[uuid] = owner
            is_alone = len(_uids(ownership.owners)) == 1
            if is_alone and ownership.belief is Belief.CONFIRMED and reading.share is not None and passed_s > 0:
                owner.note_share(reading.share, passed_s)
            owner.peak_bytes = max(owner.peak_bytes, _memory_of(owner.uid, reading, senses, is_alone=is_alone))
            uses[uuid] = owner.as_use()
        self._uses = uses
        told_of = {uuid: use for uuid, use in disputed.items() if use.pod_uids}  # without: it would seem to be free
        return _with(_with_heard(uses, heard) | told_of, crowded_out, awaited)


def _with_heard(uses: Mapping[str, GpuUse], heard: Collection[str] | None) -> dict[str, GpuUse]:
    if heard is None:
        return dict(uses)
    return {uuid: replace(use, heard=uuid in heard) if len(use.pod_uids) == 1 else use for uuid, use in uses.items()}


def _with(
    uses: Mapping[str, GpuUse], crowded_out: Mapping[str, tuple[str, ...]], awaited: Collection[str]
) -> Mapping[str, GpuUse]:
    if not crowded_out:
        return uses
    return {
        uuid: replace(use, crowded_out=crowded_out.get(uuid, ()), waits=uuid in awaited) for uuid, use in uses.items()
    }


def _seated(senses: Senses) -> set[tuple[str, str]]:
    return {
        (grant.namespace, grant.pod)
        for grant in senses.grants
        if any(resource.startswith(SEAT) for resource, _ in grant.device_ids)
    }


def _whole(ownership: Ownership, seated: Collection[tuple[str, str]]) -> tuple[str, ...]:
    return _uids([one for one in ownership.owners if (one.namespace, one.pod) not in seated])


def _uids(owners: Sequence[GpuOwner]) -> tuple[str, ...]:
    return tuple(sorted({one.pod_uid for one in owners if one.pod_uid is not None}))


def _memory_of(uid: str, reading: GpuReading, senses: Senses, *, is_alone: bool) -> int:
    """What the pod's processes have, as the driver says; all that is in use, where it does not say and it is alone."""
    pids = {user.pid for user in senses.users.get(reading.gpu.uuid, ()) if user.pod_uid == uid}
    told = sum(one.memory_bytes or 0 for one in reading.processes or () if one.pid in pids)
    if told or not is_alone or not pids or reading.memory is None:
        return told
    return reading.memory.used_bytes
