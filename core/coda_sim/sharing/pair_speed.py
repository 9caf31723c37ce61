"""How fast jobs are that share a GPU: the model of all sharing studies. Speeds are relative to alone, 0..1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from coda.sharing.pairing import GpuProfile

HOST_SPEEDS: Mapping[str, tuple[tuple[float, float], ...]] = {
    "resnet50": ((0.0, 1.0), (0.05, 0.17), (0.10, 0.10), (1.0, 0.05)),
    "super-resolution": ((0.0, 1.0), (0.9, 0.75), (1.0, 0.7)),
    "vgg16": ((0.0, 1.0), (0.5, 0.99), (1.0, 0.5)),
    "gcn": ((0.0, 1.0), (0.5, 0.97), (1.0, 0.5)),
}
"""Share of the peak in host memory -> speed. AntMan's text: super-resolution 0.9, VGG16 0.5, ResNet-50 0.1 below 0.4.
ResNet-50 at 0.05 is Table 2's 541.6 min, and GCN's curve is made so that its 43.9 min come out: both are fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairModel:
    """The numbers of the model, our choice unless said.

    k: what one job costs the other by sharing caches and the bus; c: what switching costs
    slice_s: a burst of kernels waits this long for a neighbour that is busy
    controlled: how much slower a guaranteed job is beside paced neighbours (AntMan: 1.008 to 1.035)
    arriving_steps: mini-batches in which the others have the floor while a guaranteed job arrives"""

    k: float = 0.3
    c: float = 0.05
    slice_s: float = 0.002
    controlled: float = 1.02
    arriving_steps: int = 40
    bursts_per_s: Mapping[str, float] = field(default_factory=lambda: {"espnet": 2400.0})
    """How often a job waits for the GPU to be its own, by key; default 1/step_s. ESPnet's is fitted to 105.2 min."""


DEFAULT_MODEL = PairModel()


def unpaced_speed(job: GpuProfile, neighbours: Sequence[GpuProfile], model: PairModel = DEFAULT_MODEL) -> float:
    """Return the speed of a job beside others that nobody paces."""
    if not neighbours:
        return 1.0
    others = min(1.0, sum(other.duty for other in neighbours))
    every = job.duty + sum(other.duty for other in neighbours)
    bursts = model.bursts_per_s.get(job.key, 1 / job.step_s)
    slowdown = max(1 + model.k * job.duty * others, every * (1 + model.c), 1 + bursts * model.slice_s * others)
    return 1 / slowdown


def host_speed(key: str, in_host: float) -> float:
    """Return the speed of a job with this share of its peak in host memory; between known points linear."""
    points = HOST_SPEEDS.get(key, HOST_SPEEDS["resnet50"])
    for (low, fast), (high, slow) in pairwise(points):
        if in_host <= high:
            return fast + (slow - fast) * (in_host - low) / (high - low)
    return points[-1][1]
