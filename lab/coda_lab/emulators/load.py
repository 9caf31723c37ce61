"""One model of the effect of load on a machine: the memory bandwidth served, and the resulting GPU utilisation.

Pure: loads, limits and seeds in, rates out. Time, files and the membership of groups are elsewhere. The shapes are
ours, after the pitfalls in `resctrl.rst`: a percentage caps each core, not the sum; it does little until it is low;
monitoring does not see devices' own traffic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

KNEE = 0.15  # a core is never held below this part of what it can draw
EXPONENT = 1.5  # of the cap in the percentage: 50 % leave 35 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Cores in one domain that want memory bandwidth.

    `dma_bytes_per_s`: traffic of its devices, which takes bandwidth and is never limited nor seen by monitoring.
    `core_group`: loads with the same name share physical cores as siblings; None: alone."""

    name: str
    domain: int
    cores: float
    bytes_per_s: float
    remote_share: float = 0.0
    dma_bytes_per_s: float = 0.0
    core_group: str | None = None
    limit_group: str = ""  # whose limits hold for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The bandwidth of a machine. Limits by (limit group, domain): a percentage per core, or bytes/s for all
    together.
    """

    peak_bytes_per_s: float
    core_bytes_per_s: float
    percents: Mapping[tuple[str, int], float] = field(default_factory=dict)
    totals_bytes_per_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    siblings_share: bool = True  # the lower percentage holds for both (Intel's mode `max`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The result: bytes/s by name of load, and how full each domain is (0..1)."""

    bytes_per_s: Mapping[str, float]
    fullness: Mapping[int, float]


def core_cap(percent: float, core_bytes_per_s: float) -> float:
    """The bytes/s one core may draw at a limit of `percent`: falls faster than the percentage, down to a knee."""
    return core_bytes_per_s * max(KNEE, math.pow(min(1.0, max(0.0, percent) / 100), EXPONENT))


def serve(loads: Sequence[Load], supply: Supply) -> Served:
    """The bandwidth each load gets: its demand, capped per core, per limit group, and by the domain's peak.

    A domain over its peak scales all traffic alike. Names must be unique. Cost: O(loads).
    """
    rates = {load.name: _capped(load, percent, supply) for load, percent in _percents(loads, supply)}
    for key, most in supply.totals_bytes_per_s.items():
        members = [load.name for load in loads if (load.limit_group, load.domain) == key]
        _scale(rates, members, most)
    fullness: dict[int, float] = {}
    for domain in sorted({load.domain for load in loads}):
        here = [load for load in loads if load.domain == domain]
        wanted = sum(rates[load.name] + load.dma_bytes_per_s for load in here)
        fullness[domain] = min(1.0, wanted / supply.peak_bytes_per_s)
        if wanted > supply.peak_bytes_per_s:
            for load in here:
                rates[load.name] *= supply.peak_bytes_per_s / wanted
    return Served(bytes_per_s=rates, fullness=fullness)


def _percents(loads: Sequence[Load], supply: Supply) -> Iterable[tuple[Load, float]]:
    own = {load.name: supply.percents.get((load.limit_group, load.domain), 100.0) for load in loads}
    lowest: dict[str, float] = {}
    for load in loads:
        if load.core_group is not None:
            lowest[load.core_group] = min(own[load.name], lowest.get(load.core_group, 100.0))
    for load in loads:
        shares = supply.siblings_share and load.core_group is not None
        yield load, lowest[load.core_group or ""] if shares else own[load.name]


def _capped(load: Load, percent: float, supply: Supply) -> float:
    return min(load.bytes_per_s, load.cores * core_cap(percent, supply.core_bytes_per_s))


def _scale(rates: dict[str, float], names: Sequence[str], most: float) -> None:
    total = sum(rates[name] for name in names)
    if total > most:
        for name in names:
            rates[name] *= most / total


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """The response of a training job to cores and bandwidth.

    `best`: GPU utilisation (0..1) with all it needs; `cores_needed` for that; `bandwidth_weight` (0..1): the part of a
    shortfall of bandwidth that shows as idle GPUs; `noise`: relative standard deviation of one sample.
    """

    best: float = 0.95
    cores_needed: float = 4.0
    bandwidth_weight: float = 1.0
    noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curved:
    """A training job whose GPU utilisation (0..1) is a given curve of whole cores, with any bandwidth. `noise`: as of a
    Trainer.
    """

    curve: Callable[[int], float]
    noise: float = 0.0


def utilisation(trainer: Trainer | Curved, cores: float, served_share: float) -> float:
    """GPU utilisation, 0..1, without noise: proportional to cores up to the needed ones, and to the bandwidth
    served.
    """
    if isinstance(trainer, Curved):
        return trainer.curve(max(1, round(cores)))
    fed = min(1.0, max(0.0, cores) / trainer.cores_needed)
    slowed = 1.0 - trainer.bandwidth_weight * (1.0 - min(1.0, max(0.0, served_share)))
    return trainer.best * fed * slowed


class Gpus:
    """The GPU utilisation of one training job over periods. Each period shows what the period before allowed; the first
    one shows what it allows itself.
    """

    def __init__(self, trainer: Trainer | Curved, seed: int) -> None:
        self._trainer = trainer
        self._noise = random.Random(seed)
        self._next: float | None = None

    def period(self, cores: float, served_share: float, *, limit: float = math.inf) -> float:
        """The utilisation (0..1) seen in this period, in which the job has `cores` and gets `served_share` (0..1).

        `limit`: the cores that it may use: a curve may fall with more of them than it wants."""
        is_curve = isinstance(self._trainer, Curved) and math.isfinite(limit)
        now = utilisation(self._trainer, limit if is_curve else cores, served_share)
        seen = (now if self._next is None else self._next) * (1.0 + self._noise.gauss(0.0, self._trainer.noise))
        self._next = now
        return min(1.0, max(0.0, seen))
