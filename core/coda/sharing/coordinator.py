"""The coordinator of a unit of GPUs: reports of its jobs in, orders to its opportunistic jobs out.

A unit is the GPUs of one guaranteed job on a node, or one GPU without such a job. `coordinate` joins the control law
(`pace_control`), one share for the unit, which those on one GPU divide, and the limits (`memory_limits`), per GPU. The
guaranteed job gets no order that limits it: only that its overflow may return to the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coda.sharing.config import FULL_SHARE, SharingConfig
from coda.sharing.memory_limits import MemoryReport, MemoryState, shifted
from coda.sharing.pace_control import PacePhase, PaceReport, PaceState, control


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReport:
    """What happened in a unit: the step times, and the memory of each GPU by its uuid (`arriving` is found here)."""

    pace: PaceReport
    memory_by_gpu: Mapping[str, MemoryReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """What is remembered of a unit."""

    pace: PaceState = field(default_factory=PaceState)
    memory_by_gpu: Mapping[str, MemoryState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingOrder:
    """What one job on one GPU may have. `share`: thousandths of its speed; `device_bytes` None: no limit.

    alone: nobody is beside it, so it may go on like this if the coordinator dies
    hurried: it is not paced until it has given memory back, so it must not go on like this if the coordinator dies
    drain: bring back to the device what lies in host memory"""

    gpu: str
    uid: str
    share: int = FULL_SHARE
    device_bytes: int | None = None
    alone: bool = False
    hurried: bool = False
    drain: bool = False


def coordinate(
    state: UnitState, report: UnitReport, now_s: float, config: SharingConfig
) -> tuple[UnitState, tuple[SharingOrder, ...]]:
    """Return the next state and an order for every job on every GPU, by GPU, then uid. Orders may be repeated."""
    pace = control(state.pace, report.pace, now_s, config)
    arriving = pace.phase is PacePhase.ARRIVING
    memory_by_gpu = {
        gpu: shifted(state.memory_by_gpu.get(gpu, MemoryState()), replace(memory, arriving=arriving), now_s, config)
        for gpu, memory in sorted(report.memory_by_gpu.items())
    }
    orders = [
        order
        for gpu, memory in sorted(report.memory_by_gpu.items())
        for order in _orders(gpu, memory, memory_by_gpu[gpu], pace, config)
    ]
    return UnitState(pace=pace, memory_by_gpu=memory_by_gpu), tuple(orders)


def _orders(
    gpu: str, report: MemoryReport, memory: MemoryState, pace: PaceState, config: SharingConfig
) -> list[SharingOrder]:
    orders = []
    if report.guaranteed is not None:
        alone = not report.opportunistic
        orders.append(SharingOrder(gpu=gpu, uid=report.guaranteed.uid, alone=alone, drain=memory.drains))
    for use in report.opportunistic:
        alone = report.guaranteed is None and len(report.opportunistic) == 1
        limit = memory.limit_of(use.uid)
        share, hurried = _share(use.uid, memory, pace.share_of_each(len(report.opportunistic)), config)
        orders.append(SharingOrder(gpu=gpu, uid=use.uid, share=share, device_bytes=limit, alone=alone, hurried=hurried))
    return sorted(orders, key=lambda order: order.uid)


def _share(uid: str, memory: MemoryState, usual: int, config: SharingConfig) -> tuple[int, bool]:
    """One without memory stands still; one that must give memory back reaches the end of its mini-batch first, and one
    that is to be stopped hears that it is."""
    if uid in memory.ending:
        return max(usual, config.floor_share), False
    if uid in memory.misfits:
        return 0, False
    return (FULL_SHARE, True) if uid in memory.hurried else (usual, False)
