"""What the processes of one pod have said lately."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from coda.sharing.memory_limits import MemoryControl, MemoryUse
from coda_agent.sharing.messages import MOST_GPUS, GpuClaim, Message

PEAK_S = 60.0
"""How long a peak is remembered (AntMan's coordinator gives memory back no faster)."""

MOST_PEAKS = int(PEAK_S) + 2
"""Entries of one list: one for each second of the last minute, of which two are not whole."""

IDLE_S = 60.0
"""A process that ran no kernel and ended no mini-batch for so long takes no part of its pod's share. Our choice: an
evaluation between two epochs takes seconds."""

KEPT_STEPS = 500
KNOWN_STEPS = 3


@dataclass(slots=True)
class Process:
    """One connection. `peaks`: (time, bytes) by GPU, of the last minute; `hosts`: what of it lay in host memory.
    `claimed_at_s`: when it last said what it has; `worked_at_s`: when it last showed that it works, or could not."""

    control: MemoryControl = MemoryControl.FULL
    has_spoken: bool = False
    claims: dict[str, GpuClaim] = field(default_factory=dict)
    claimed_at_s: float = -math.inf
    worked_at_s: float = -math.inf
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    count: int = 0
    counted: int = 0  # of `count`, at the last round
    least: dict[str, int] = field(default_factory=dict)  # bytes by GPU, when a limit was last reached as far as it goes
    peaks: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    hosts: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)  # not yet told to the coordinator

    def take(self, message: Message, now_s: float) -> None:
        """Remember what a message says."""
        if not self.has_spoken or message.count > self.count or self._was_busy(message):
            self.worked_at_s = now_s
        self.has_spoken = True
        if message.control is not None:
            self.control = message.control
        self.steps.extend(message.steps)
        if self.count == 0:
            self.counted = message.count  # before our time, perhaps: that is no speed
        self.count = max(self.count, message.count)
        if message.gpus is None:
            return
        before, self.claims = self.claims, {claim.gpu: claim for claim in message.gpus}
        self.claimed_at_s = now_s
        for gpu, claim in self.claims.items():
            if gpu not in self.peaks and len(self.peaks) >= MOST_GPUS:
                continue  # no process has so many: it makes names up
            was = before[gpu].refusals if gpu in before else 0
            self.refusals[gpu] = self.refusals.get(gpu, 0) + max(0, claim.refusals - was)
            _note(self.peaks.setdefault(gpu, []), claim.device_bytes + claim.host_bytes, now_s)
            _note(self.hosts.setdefault(gpu, []), claim.host_bytes, now_s)
            if message.kind == "done":
                self.least[gpu] = claim.device_bytes

    def _was_busy(self, message: Message) -> bool:
        before = {gpu: claim.busy_ns for gpu, claim in self.claims.items()}
        return any(claim.busy_ns > before.get(claim.gpu, 0) for claim in message.gpus or ())

    def shares(self, gpu: str, now_s: float) -> bool:
        """True if it takes a part of its pod's share of a GPU: it works there, or nobody knows."""
        claim = self.claims.get(gpu)
        has_memory = claim is not None and claim.device_bytes + claim.host_bytes > 0
        is_idle = now_s - self.worked_at_s > IDLE_S and self.control is not MemoryControl.NONE
        return (has_memory or not self.claims) and not is_idle

    def forget(self, gpus: Collection[str], now_s: float) -> None:
        """Forget old peaks, and all that it said of others than these `gpus`: they are none of this node."""
        for by_gpu in (self.peaks, self.hosts, self.least, self.refusals):
            for name in by_gpu.keys() - gpus:
                del by_gpu[name]
        for peaks in (*self.peaks.values(), *self.hosts.values()):
            _prune(peaks, now_s)

    @property
    def is_known(self) -> bool:
        """True once it has shown what it needs: before that no limit can be right."""
        return self.count >= KNOWN_STEPS and bool(self.peaks)

    def floor_bytes(self, gpu: str) -> int:
        """What it keeps between two mini-batches: tensors, and what lies between them. Never more than its peak: a
        limit that was reached long ago says nothing of what it holds now, and a process may say anything."""
        return min(self.peak_bytes(gpu), max(self.claims[gpu].floor_bytes, self.least.get(gpu, 0)))

    def control_on(self, gpu: str) -> MemoryControl:
        """Without enough host memory behind it a limit below the peak would end the job."""
        claim = self.claims[gpu]
        short = self.peak_bytes(gpu) - self.floor_bytes(gpu) > claim.reserve_bytes
        return MemoryControl.FRACTION if short and self.control is MemoryControl.FULL else self.control

    def peak_bytes(self, gpu: str) -> int:
        """The most of the last minute."""
        return _most(self.peaks, gpu)

    def host_peak_bytes(self, gpu: str) -> int:
        """The most that lay in host memory in the last minute."""
        return _most(self.hosts, gpu)


def _note(peaks: list[tuple[float, int]], size: int, now_s: float) -> None:
    """A falling list: what a later and larger value makes unimportant is dropped. Of each second only the most counts,
    so that many reports are not many entries."""
    while peaks and peaks[-1][1] <= size:
        peaks.pop()
    if peaks and math.floor(peaks[-1][0]) == math.floor(now_s):
        size = peaks.pop()[1]
    peaks.append((now_s, size))
    _prune(peaks, now_s)


def _prune(peaks: list[tuple[float, int]], now_s: float) -> None:
    """The last one stays: the process has said nothing else since."""
    while len(peaks) > 1 and peaks[0][0] < now_s - PEAK_S:
        peaks.pop(0)


def _most(peaks: Mapping[str, list[tuple[float, int]]], gpu: str) -> int:
    return peaks[gpu][0][1] if peaks.get(gpu) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the driver sees that a pod has of a GPU, in bytes, contexts included.

    most_bytes: the most so far: what the pod says beyond that does not count. None: it all counts"""

    now_bytes: int = 0
    most_bytes: int | None = None


def use_of(
    uid: str, gpu: str, processes: Iterable[Process], *, context_bytes: int, seen: Seen, span_s: float
) -> MemoryUse:
    """Return what a pod has of a GPU, all its processes together; their refusals are taken.

    context_bytes: of each process that has memory, beside its tensors
    seen: for a pod that says less, or more; span_s: since the last round, for its speed"""
    total = MemoryUse(uid=uid, peak_bytes=0, control=MemoryControl.NONE, speed=None)
    host_peak_bytes = 0
    controls: list[MemoryControl] = []
    speeds: list[float] = []
    for process in processes:
        claim = process.claims.get(gpu)
        controls.append(process.control if claim is None else process.control_on(gpu))
        if claim is None:
            continue
        has_memory = claim.device_bytes > 0 or claim.host_bytes > 0
        host_peak_bytes += process.host_peak_bytes(gpu)
        total = replace(
            total,
            peak_bytes=total.peak_bytes + process.peak_bytes(gpu),
            floor_bytes=total.floor_bytes + process.floor_bytes(gpu),
            device_bytes=total.device_bytes + claim.device_bytes,
            host_bytes=total.host_bytes + claim.host_bytes,
            refusals=total.refusals + process.refusals.pop(gpu, 0),
            context_bytes=total.context_bytes + (context_bytes if has_memory else 0),
        )
        if span_s > 0:
            speeds.append((process.count - process.counted) / span_s)
    total = replace(total, control=_least(controls), speed=max(speeds, default=None))
    if seen.most_bytes is not None:
        total = _within(total, seen.most_bytes, host_peak_bytes)
    peak_bytes = max(total.peak_bytes, seen.now_bytes - total.context_bytes, 0)
    return replace(total, peak_bytes=peak_bytes, floor_bytes=min(total.floor_bytes, peak_bytes))


def _within(use: MemoryUse, most_bytes: int, host_peak_bytes: int) -> MemoryUse:
    """What the driver never saw, a pod does not have. What it says of the host makes no neighbour stand still: that
    counts only in a peak beneath which it may be limited."""
    on_host_bytes = host_peak_bytes if use.control is MemoryControl.FULL else 0
    peak_bytes = min(use.peak_bytes, most_bytes + on_host_bytes)
    return replace(
        use,
        peak_bytes=peak_bytes,
        floor_bytes=min(use.floor_bytes, most_bytes, peak_bytes),
        device_bytes=min(use.device_bytes, most_bytes),
        context_bytes=min(use.context_bytes, most_bytes),
    )


def _least(controls: Iterable[MemoryControl]) -> MemoryControl:
    """A pod is controlled as well as the worst of its processes; one without a connection not at all."""
    order = (MemoryControl.NONE, MemoryControl.FRACTION, MemoryControl.FULL)
    return min(controls, key=order.index, default=MemoryControl.NONE)
