"""What a simulated pod does to its machine: from its annotations, else by its job's category. Pure.

Annotations `load.coda.scheduler/<name>` of the pod. `model`: one of the models of the simulator's profile set `paper`,
with its GPUs' cores, their utilisation, and its memory traffic (as if all ranks were on one node); the default comes
from the job's category. Each of these wins over it: `cores-needed`, `best-utilization` (0..1), `noise` (relative
standard deviation of a sample), `bandwidth-weight` (0..1: the part of a shortfall of memory bandwidth that shows as
idle GPUs), `gb-per-second`. `xid`: the driver reports this error of its first GPU, when the
annotation comes or changes. For all pods: `socket`. For pods without GPUs also `cores`, the cores it would use
(default: its limit). A pod without GPUs has no memory traffic unless an annotation gives it some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coda.allocator import Category
from coda.errors import InvalidInput
from coda_kube.objects.names import GROUP
from coda_lab.emulators.load import Trainer
from coda_sim.workload import profile_set
from coda_sim.workload.model_profiles import GB, ModelProfile
from coda_sim.workload.speed_curves import best_cores

PREFIX: Final = f"load.{GROUP}/"
MODEL_BY_CATEGORY: Final[Mapping[str, str]] = {
    "": "Resnet-50",
    Category.CV.value: "Alexnet",
    Category.NLP.value: "BAT",
    Category.SPEECH.value: "DeepSpeech",
}
NOISE: Final = 0.01
USUAL_WEIGHT: Final = 1.0  # every trainer suffers: a demonstration of contention needs a victim

_NUMBERS: Final[Mapping[str, tuple[float, float]]] = {  # name -> least and most
    "cores-needed": (0.1, 1024),
    "best-utilization": (0.01, 1),
    "noise": (0, 1),
    "bandwidth-weight": (0, 1),
    "gb-per-second": (0, 10_000),
    "cores": (0.01, 1024),
    "socket": (0, 1023),
    "xid": (1, 999),
}
_WHOLE: Final = frozenset({"socket", "xid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLoad:
    """`demand_cores` and `bytes_per_s`: without limits. `trainer` None: it has no GPUs. `socket` None: any."""

    demand_cores: float
    bytes_per_s: float
    trainer: Trainer | None
    socket: int | None = None
    xid: int | None = None


def load_of(annotations: Mapping[str, Any], *, gpus: int, limit_cores: float | None, category: str) -> PodLoad:
    """The load of a pod with `gpus` and `limit_cores`; `category` of its job, empty for none. Raises InvalidInput with
    the annotation's name."""
    given = {key.removeprefix(PREFIX): str(text) for key, text in annotations.items() if key.startswith(PREFIX)}
    unknown = sorted(given.keys() - _NUMBERS.keys() - {"model"})
    if unknown:
        names = ", ".join(sorted((*_NUMBERS, "model")))
        raise InvalidInput(f"annotation {PREFIX}{unknown[0]} is unknown: the names are {names}")
    numbers = {name: _number(name, text) for name, text in given.items() if name != "model"}
    socket = int(numbers["socket"]) if "socket" in numbers else None
    if not gpus:
        cores = numbers.get("cores", limit_cores or 1.0)
        bytes_per_s = numbers.get("gb-per-second", 0.0) * GB
        return PodLoad(demand_cores=cores, bytes_per_s=bytes_per_s, trainer=None, socket=socket)
    xid = int(numbers["xid"]) if "xid" in numbers else None
    profile = _profile(given.get("model", MODEL_BY_CATEGORY[category]))
    trainer = Trainer(
        best=numbers.get("best-utilization", profile.peak_utilisation),
        cores_needed=numbers.get("cores-needed", float(best_cores(profile, gpus))),
        bandwidth_weight=numbers.get("bandwidth-weight", USUAL_WEIGHT),
        noise=numbers.get("noise", NOISE),
    )
    traffic = numbers["gb-per-second"] * GB if "gb-per-second" in numbers else profile.bandwidth_bytes_per_s * gpus
    return PodLoad(demand_cores=trainer.cores_needed, bytes_per_s=traffic, trainer=trainer, socket=socket, xid=xid)


def _profile(model: str) -> ModelProfile:
    known = profile_set("paper").profile_by_model
    if model not in known:
        raise InvalidInput(f"annotation {PREFIX}model is {model!r}: give one of {', '.join(known)}")
    return known[model]


def _number(name: str, text: str) -> float:
    least, most = _NUMBERS[name]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most or (name in _WHOLE and not number.is_integer()):
        raise InvalidInput(f"annotation {PREFIX}{name} is {text!r}: give a number from {least:g} to {most:g}")
    return number
