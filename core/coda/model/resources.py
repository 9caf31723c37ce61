"""Amounts of resources, as ranks ask for them and nodes have them.

No other value is made and compared so often. The constructor and the comparison are written out because the ones that
`dataclass` generates stay interpreted in the compiled core (docs/decisions/0028). The value is frozen nevertheless.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

_MANY: Final = 2**80
"""More copies than ever fit: amounts have 64 bits."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Resources:
    """An amount of every resource that a node can run out of. Exact integers, SI base units."""

    cpu_m: int = 0  # millicores
    memory_bytes: int = 0
    gpus: int = 0
    pods: int = 0  # pod slots
    other: Mapping[str, int] = field(default_factory=dict)  # further resources by name (hugepages-2Mi, rdma/hca, ...)

    def __init__(
        self,
        *,
        cpu_m: int = 0,
        memory_bytes: int = 0,
        gpus: int = 0,
        pods: int = 0,
        other: Mapping[str, int] | None = None,
    ) -> None:
        object.__setattr__(self, "cpu_m", cpu_m)
        object.__setattr__(self, "memory_bytes", memory_bytes)
        object.__setattr__(self, "gpus", gpus)
        object.__setattr__(self, "pods", pods)
        object.__setattr__(self, "other", {} if other is None else other)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Resources)
            and self.cpu_m == other.cpu_m
            and self.gpus == other.gpus
            and self.memory_bytes == other.memory_bytes
            and self.pods == other.pods
            and self.other == other.other
        )

    def __hash__(self) -> int:
        return hash((self.cpu_m, self.memory_bytes, self.gpus, self.pods))

    def __add__(self, more: Resources) -> Resources:
        if self is NOTHING:
            return more
        return Resources(
            cpu_m=self.cpu_m + more.cpu_m,
            memory_bytes=self.memory_bytes + more.memory_bytes,
            gpus=self.gpus + more.gpus,
            pods=self.pods + more.pods,
            other=_summed(self.other, more.other, 1) if more.other else self.other,
        )

    def __sub__(self, less: Resources) -> Resources:
        """May go below zero: an over-committed node has less than nothing left."""
        return Resources(
            cpu_m=self.cpu_m - less.cpu_m,
            memory_bytes=self.memory_bytes - less.memory_bytes,
            gpus=self.gpus - less.gpus,
            pods=self.pods - less.pods,
            other=_summed(self.other, less.other, -1) if less.other else self.other,
        )

    def with_cpu(self, cpu_m: int) -> Resources:
        """Return the same amount with `cpu_m` millicores."""
        return Resources(cpu_m=cpu_m, memory_bytes=self.memory_bytes, gpus=self.gpus, pods=self.pods, other=self.other)

    def of_kinds(self, asked: Resources) -> Resources:
        """Return the same amount without the named resources that were not asked for."""
        return replace(self, other={name: amount for name, amount in self.other.items() if asked.other.get(name)})

    def __mul__(self, count: int) -> Resources:
        """Return what `count` equal ranks ask for together."""
        if count == 1:
            return self
        return Resources(
            cpu_m=self.cpu_m * count,
            memory_bytes=self.memory_bytes * count,
            gpus=self.gpus * count,
            pods=self.pods * count,
            other={name: amount * count for name, amount in self.other.items()} if self.other else self.other,
        )

    def fits_in(self, free: Resources) -> bool:
        """True if every amount asked for is free; amounts not asked for may be negative."""
        return (
            (self.gpus <= free.gpus or not self.gpus)
            and (self.cpu_m <= free.cpu_m or not self.cpu_m)
            and (self.memory_bytes <= free.memory_bytes or not self.memory_bytes)
            and (self.pods <= free.pods or not self.pods)
            and (not self.other or all(count <= _other_free(free, name) for name, count in self.other.items() if count))
        )

    def helps(self, wanted: Resources, free: Resources) -> bool:
        """True if this has some of what `wanted` lacks in `free`."""
        return bool(
            (wanted.gpus > free.gpus and self.gpus)
            or (wanted.cpu_m > free.cpu_m and self.cpu_m)
            or (wanted.memory_bytes > free.memory_bytes and self.memory_bytes)
            or (wanted.pods > free.pods and self.pods)
            or any(count > _other_free(free, name) and self.other.get(name) for name, count in wanted.other.items())
        )

    def times_in(self, free: Resources) -> int:
        """Return how many copies of this fit in `free` together; 0 if none does."""
        if not self.fits_in(free):
            return 0  # the usual answer, and the cheapest to find
        times = free.gpus // self.gpus if self.gpus else _MANY
        if self.cpu_m:
            times = min(times, free.cpu_m // self.cpu_m)
        if self.memory_bytes:
            times = min(times, free.memory_bytes // self.memory_bytes)
        if self.pods:
            times = min(times, free.pods // self.pods)
        if self.other:
            counts = [_other_free(free, name) // asked for name, asked in self.other.items() if asked]
            times = min([times, *counts])
        return times if times < _MANY else 0


def _summed(one: Mapping[str, int], two: Mapping[str, int], sign: int) -> Mapping[str, int]:
    total = dict(one)
    for name, amount in two.items():
        total[name] = total.get(name, 0) + sign * amount
    return total


NOTHING = Resources()


def key_of_amount(amount: Resources) -> Hashable:
    """Return a key that is equal for equal amounts."""
    other = frozenset(amount.other.items()) if amount.other else None
    return (amount.gpus, amount.cpu_m, amount.memory_bytes, amount.pods, other)


HOST_PORT: Final = "hostPort/"
"""Begins the names, in `Resources.other`, of host ports. A port of a node can be used by one pod at a time."""
GPUS: Final = "gpus"
CPU: Final = "cpu_m"
MEMORY: Final = "memory_bytes"
PODS: Final = "pods"
MAIN: Final = (GPUS, CPU, MEMORY, PODS)  # field names of Resources, in the order in which a shortage is named


def _other_free(free: Resources, name: str) -> int:
    """As `amount_free`, of a name in `Resources.other`: that may be any text, also the name of a field."""
    return free.other.get(name, 0) + (1 if name.startswith(HOST_PORT) else 0)


def amount_of(resources: Resources, name: str) -> int:
    """Return the amount of one resource, by a name of `MAIN` or of `Resources.other`."""
    if name == GPUS:
        return resources.gpus
    if name == CPU:
        return resources.cpu_m
    if name == MEMORY:
        return resources.memory_bytes
    return resources.pods if name == PODS else resources.other.get(name, 0)


def amount_free(free: Resources, name: str) -> int:
    """Return how much of a resource is left where `free` is left, by a name of `MAIN` or of `Resources.other`.

    Of a host port every node has one, although no node says so: one that is used stands as -1 in `free`."""
    return amount_of(free, name) + (1 if name.startswith(HOST_PORT) else 0)


def amounts_asked(request: Resources) -> dict[str, int]:
    """Return each amount that is asked for by the name of its resource, in the order in which a shortage is named."""
    names = (*MAIN, *sorted(request.other))
    return {name: amount for name in names if (amount := amount_of(request, name))}
