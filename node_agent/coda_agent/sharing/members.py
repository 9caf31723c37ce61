"""What the processes of one pod have said lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from coda.sharing.memory_limits import MemoryControl, MemoryUse
from coda_agent.sharing.messages import MOST_GPUS, GpuClaim, Message

PEAK_S = 60.0
"""How long a peak is remembered (AntMan's coordinator gives memory back no faster)."""

KEPT_STEPS = 500
KNOWN_STEPS = 3


@dataclass(slots=True)
class Process:
    """One connection. `peaks`: (time, bytes) by GPU, of the last minute."""

    control: MemoryControl = MemoryControl.FULL
    has_spoken: bool = False
    claims: dict[str, GpuClaim] = field(default_factory=dict)
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    count: int = 0
    counted: int = 0  # of `count`, at the last round
    least: dict[str, int] = field(default_factory=dict)  # bytes by GPU, when a limit was last reached as far as it goes
    peaks: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)  # not yet told to the coordinator

    def take(self, message: Message, now_s: float) -> None:
        """Remember what a message says."""
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
        for gpu, claim in self.claims.items():
            if gpu not in self.peaks and len(self.peaks) >= MOST_GPUS:
                continue  # no process has so many: it makes names up
            was = before[gpu].refusals if gpu in before else 0
            self.refusals[gpu] = self.refusals.get(gpu, 0) + max(0, claim.refusals - was)
            self._note_peak(gpu, claim.device_bytes + claim.host_bytes, now_s)
            if message.kind == "done":
                self.least[gpu] = claim.device_bytes

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

    def _note_peak(self, gpu: str, size: int, now_s: float) -> None:
        """A falling list: what a later and larger value makes unimportant is dropped."""
        peaks = self.peaks.setdefault(gpu, [])
        while peaks and peaks[-1][1] <= size:
            peaks.pop()
        peaks.append((now_s, size))
        while len(peaks) > 1 and peaks[0][0] < now_s - PEAK_S:
            peaks.pop(0)

    def peak_bytes(self, gpu: str) -> int:
        """The most of the last minute."""
        peaks = self.peaks.get(gpu)
        return peaks[0][1] if peaks else 0


def use_of(
    uid: str, gpu: str, processes: Iterable[Process], *, context_bytes: int, seen_bytes: int, span_s: float
) -> MemoryUse:
    """Return what a pod has of a GPU, all its processes together; their refusals are taken.

    context_bytes: of each process, beside its tensors
    seen_bytes: by the driver, for a pod that says less; span_s: since the last round, for its speed"""
    total = MemoryUse(uid=uid, peak_bytes=0, control=MemoryControl.NONE, speed=None)
    controls: list[MemoryControl] = []
    speeds: list[float] = []
    for process in processes:
        claim = process.claims.get(gpu)
        controls.append(process.control if claim is None else process.control_on(gpu))
        if claim is None:
            continue
        total = replace(
            total,
            peak_bytes=total.peak_bytes + process.peak_bytes(gpu),
            floor_bytes=total.floor_bytes + process.floor_bytes(gpu),
            device_bytes=total.device_bytes + claim.device_bytes,
            host_bytes=total.host_bytes + claim.host_bytes,
            refusals=total.refusals + process.refusals.pop(gpu, 0),
            context_bytes=total.context_bytes + context_bytes,
        )
        if span_s > 0:
            speeds.append((process.count - process.counted) / span_s)
    peak_bytes = max(total.peak_bytes, seen_bytes - total.context_bytes, 0)
    return replace(
        total,
        peak_bytes=peak_bytes,
        floor_bytes=min(total.floor_bytes, peak_bytes),
        control=_least(controls),
        speed=max(speeds, default=None),
    )


def _least(controls: Iterable[MemoryControl]) -> MemoryControl:
    """A pod is controlled as well as the worst of its processes; one without a connection not at all."""
    order = (MemoryControl.NONE, MemoryControl.FRACTION, MemoryControl.FULL)
    return min(controls, key=order.index, default=MemoryControl.NONE)
