"""The jobs of AntMan's Table 3, as data: what each model does to a 32 GB GPU, alone.

From AntMan's text: GCN 3.5 GB and ResNet-50 30 GB (Table 1), ESPnet 3.6 GB, 17, 16 and 4 GB for VGG16, Inception and
GoogleNet, most models small. The duty cycles are ours: 10 % of GPUs exceed 80 % utilisation, and recommendation and
advertising mostly wait for their CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coda.sharing.config import GIB
from coda.sharing.pairing import GpuProfile, MeasuredPairs


def _profile(key: str, duty: float, step_s: float, peak_gib: float, floor_gib: float) -> GpuProfile:
    return GpuProfile(
        key=key, duty=duty, step_s=step_s, peak_bytes=int(peak_gib * GIB), floor_bytes=int(floor_gib * GIB)
    )


PROFILES: Mapping[str, GpuProfile] = MappingProxyType(
    {
        profile.key: profile
        for profile in (
            _profile("resnet50", 0.88, 0.30, 30.0, 0.4),
            _profile("vgg16", 0.75, 0.25, 17.0, 1.5),
            _profile("super-resolution", 0.70, 0.20, 8.0, 0.3),
            _profile("bert", 0.70, 0.40, 14.0, 2.5),
            _profile("espnet", 0.25, 0.25, 3.6, 0.5),
            _profile("graphsage", 0.15, 0.10, 2.5, 0.5),
            _profile("gcn", 0.05, 0.15, 3.5, 0.5),
            _profile("din", 0.20, 0.05, 1.5, 0.5),
            _profile("wide-and-deep", 0.15, 0.05, 1.0, 0.5),
        )
    }
)

MIX: tuple[tuple[str, ...], ...] = (
    ("resnet50", "vgg16", "super-resolution"),
    ("bert",),
    ("espnet",),
    ("graphsage", "gcn"),
    ("din", "wide-and-deep"),
)
"""Categories of Table 3, 20 % of the jobs each; the models of a category are equally frequent (our choice)."""

MEASURED = MeasuredPairs(runs={("resnet50", "espnet"): (0.57,)})
"""Figure 12's text: ResNet-50 keeps 57 % beside ESPnet. No duty cycle of ESPnet's predicts this: it is fitted."""
