"""The tree of tenants: who is a part of whom, and how much of a quota is really a tenant's own.

A tenant whose parent cannot be used stands at the top, with its own quota, until that is mended: nobody waits for it,
and no other tenant notices. The children of a parent that has less than they ask for own a part of theirs each, in
proportion. So what is owned below a tenant is never more than what the tenant owns, on any level.
Source: our choice. Kueue's cohorts add up what is below them; YARN's hierarchical queues give children percentages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda.model.resources import CPU, GPUS
from coda.model.world import VirtualCluster
from coda.wording import amount_text, counted

MAX_LEVELS: Final = 8
"""Levels of a tree at most. Our choice: organisations have three or four; each level costs time at each decision."""

_NAMED: Final = 5  # tenants of a loop that a sentence names

_NOBODY: Final = VirtualCluster(name="")
"""Stands for a tenant that is not known: it owns nothing, and borrows."""


class Detached(Enum):
    """Why a tenant stands at the top although it names a parent."""

    MISSING = "ParentMissing"
    LOOP = "ParentLoop"
    TOO_DEEP = "TooDeep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One place of the tree: a tenant with all that is below it, or what one with children holds directly.

    own_gpus, own_cpu_m: what is its own; 0 without a quota
    limit_gpus, limit_cpu_m: the most it may hold; None: what others leave"""

    tenant: VirtualCluster
    own_gpus: int = 0
    own_cpu_m: int = 0
    limit_gpus: int | None = None
    limit_cpu_m: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amount:
    """What a tenant asks for as its own. None: no quota, here nor below."""

    gpus: int | None
    cpu_m: int | None


class TenantTree:
    """The tenants of one moment, in their places. Two trees of equal tenants are equal, in whatever order they came.

    Names are as in `VirtualCluster`. O(tenants x levels) to build."""

    def __init__(self, tenants: Iterable[VirtualCluster] = ()) -> None:
        self._tenant_by_name = {one.name: one for one in tenants}
        self._detached: dict[str, tuple[Detached, str]] = {}  # by name: why, and the sentence
        self._parent_by_name = _parents(self._tenant_by_name, self._detached)
        self._children: dict[str, list[str]] = {}
        for name in sorted(self._parent_by_name):
            self._children.setdefault(self._parent_by_name[name], []).append(name)
        self._asked: dict[str, _Amount] = {}
        self._seats: dict[str, Seat] = {}
        self._short: dict[str, str] = {}  # by name of a tenant that owns less than it asks for: the sentence
        self._paths: dict[str, tuple[str, ...]] = {}
        tops = [name for name in sorted(self._tenant_by_name) if name not in self._parent_by_name]
        for name in tops:
            self._ask(name)
        for name in tops:
            asked = self._asked[name]
            self._seat(name, asked.gpus or 0, asked.cpu_m or 0, ())
        seats = [self._seats[name] for name in tops]
        self._owned = {
            GPUS: {seat.tenant.name: seat.own_gpus for seat in seats if seat.own_gpus},
            CPU: {seat.tenant.name: seat.own_cpu_m for seat in seats if seat.own_cpu_m},
        }  # by the tenants at the top, of those that own some
        found = {name: self._trouble(name) for name in sorted(self._tenant_by_name)}
        self.troubles: Mapping[str, str] = {name: text for name, text in found.items() if text is not None}
        """What is wrong on the path of each tenant with trouble: the first sentence, from itself upwards."""

    def path(self, tenant: str) -> tuple[str, ...]:
        """Return the seats that a job of this tenant counts for, from the top down. One for a tenant that is not known.

        A tenant with children has a seat of its own besides, for what its own jobs hold: `NAME/`."""
        return self._paths.get(tenant) or (tenant,)

    def seat(self, name: str) -> Seat:
        """Return a seat of a path."""
        return self._seats.get(name) or Seat(tenant=_NOBODY)

    def seats(self) -> Mapping[str, Seat]:
        """Return every seat, by its name."""
        return self._seats

    def children(self, tenant: str) -> tuple[str, ...]:
        """Return the tenants directly below, by name."""
        return tuple(self._children.get(tenant, ()))

    def below(self, tenant: str) -> frozenset[str]:
        """Return the tenant and all that are below it."""
        found = [tenant]
        for name in found:
            found += self._children.get(name, ())
        return frozenset(found)

    def owns_less(self, tenant: str, before: TenantTree) -> bool:
        """True if jobs of a tenant own fewer GPUs than in an earlier tree, on some level that they counted for then.

        What a level owned that they do not count for any more is lost. O(levels)."""
        then, now = before.path(tenant), self.path(tenant)
        if self.seat(now[-1]).own_gpus < before.seat(then[-1]).own_gpus:
            return True
        return any((self.seat(one).own_gpus if one in now else 0) < before.seat(one).own_gpus for one in then[:-1])

    def detached(self, tenant: str) -> tuple[Detached, str] | None:
        """Return why a tenant stands at the top although it names a parent, and the sentence; None if it does not."""
        return self._detached.get(tenant)

    def shortage_of_children(self, tenant: str) -> str | None:
        """Return the sentence for a tenant whose children ask for more than it owns; None if they do not."""
        return self._short.get(tenant)

    def part_text(self, tenant: str) -> str | None:
        """Return the sentence for a tenant that owns less than its quota, because its parent does; None if not."""
        seat, asked, parent = self._seats.get(tenant), self._asked.get(tenant), self._parent_by_name.get(tenant)
        if seat is None or asked is None or parent is None:
            return None
        for kind, own, wanted in ((GPUS, seat.own_gpus, asked.gpus or 0), (CPU, seat.own_cpu_m, asked.cpu_m or 0)):
            if own < wanted:
                has, of = amount_text(kind, own), amount_text(kind, wanted)
                why = f"its parent {parent} has less than its children ask for"
                return f"VirtualCluster {tenant} owns {has} of its {of}: {why}"
        return None

    def beyond_text(self, kind: str, there: int, tenant: str | None = None) -> str | None:
        """Return the sentence for GPUs or cores (CPU, in millicores) of which the tenants at the top own more together
        than are `there`; None if they do not. With `tenant`, only if it is one of these."""
        owned = self._owned[kind]
        total = sum(owned.values())
        if total <= there or (tenant is not None and tenant not in owned):
            return None
        who, *others = owned
        own = "the top-level VirtualClusters own" if others else f"VirtualCluster {who} owns"
        has = (
            f"{amount_text(kind, total)}{' together' if others else ''}, and the cluster has {amount_text(kind, there)}"
        )
        return f"{own} {has}: what is owned is not always there"

    def _trouble(self, tenant: str) -> str | None:
        for name in reversed(self.path(tenant)):
            found = self._detached.get(name)
            if found is not None:
                return found[1]
            part = self.part_text(name)
            if part is not None:
                return part
        return None

    def _ask(self, name: str) -> _Amount:
        """Find what a tenant asks for as its own: its quota, else what those below it ask for together."""
        tenant = self._tenant_by_name[name]
        below = [self._ask(child) for child in self._children.get(name, ())]
        asked = self._asked[name] = _Amount(
            gpus=_sum([one.gpus for one in below]) if tenant.gpus is None else tenant.gpus,
            cpu_m=_sum([one.cpu_m for one in below]) if tenant.cpu_m is None else tenant.cpu_m,
        )
        return asked

    def _seat(self, name: str, gpus: int, cpu_m: int, above: tuple[str, ...]) -> None:
        """Give a tenant its seat, with this as its own, and those below it theirs."""
        tenant, asked, path = self._tenant_by_name[name], self._asked[name], (*above, name)
        self._seats[name] = Seat(
            tenant=tenant,
            own_gpus=gpus,
            own_cpu_m=cpu_m,
            limit_gpus=None if tenant.may_borrow else asked.gpus,
            limit_cpu_m=None if tenant.may_borrow else asked.cpu_m,
        )
        children = self._children.get(name)
        if not children:
            self._paths[name] = path
            return
        wanted_gpus = {child: self._asked[child].gpus or 0 for child in children}
        wanted_cpu_m = {child: self._asked[child].cpu_m or 0 for child in children}
        own_gpus, own_cpu_m = _parts(wanted_gpus, gpus), _parts(wanted_cpu_m, cpu_m)
        self._note_shortage(name, wanted_gpus, gpus, wanted_cpu_m, cpu_m)
        itself = f"{name}/"
        self._paths[name] = (*path, itself)
        self._seats[itself] = Seat(
            tenant=tenant, own_gpus=gpus - sum(own_gpus.values()), own_cpu_m=cpu_m - sum(own_cpu_m.values())
        )
        for child in children:
            self._seat(child, own_gpus[child], own_cpu_m[child], path)

    def _note_shortage(
        self, name: str, wanted_gpus: Mapping[str, int], gpus: int, wanted_cpu_m: Mapping[str, int], cpu_m: int
    ) -> None:
        for kind, wanted, own in ((GPUS, sum(wanted_gpus.values()), gpus), (CPU, sum(wanted_cpu_m.values()), cpu_m)):
            if wanted > own:
                whose = counted(len(wanted_gpus), "VirtualCluster")
                asks, has = amount_text(kind, wanted), amount_text(kind, own)
                self._short[name] = f"the {whose} below it ask for {asks} and it owns {has}: each owns its part of that"
                return


def _parents(tenants: Mapping[str, VirtualCluster], detached: dict[str, tuple[Detached, str]]) -> dict[str, str]:
    """Return the parent of each tenant that has one, and note in `detached` whose parent cannot be used.

    All tenants of a loop stand at the top. Of a branch that is too deep, whoever is one level too deep does."""
    parents = {name: one.parent for name, one in sorted(tenants.items()) if one.parent}
    for name in list(parents):
        if parents[name] not in tenants:
            why = f"its parent {parents[name]} does not exist"
            detached[name] = (Detached.MISSING, _stands_alone(name, why))
    for name in detached:
        del parents[name]
    settled: set[str] = set()  # their parents run into no loop
    for name in list(parents):
        loop = _loop_of(name, parents, settled)
        if loop:
            way = " < ".join([*loop[:_NAMED], *(["..."] if len(loop) > _NAMED else []), loop[0]])
            why = f"its parents form a loop ({way})"
            detached.update({one: (Detached.LOOP, _stands_alone(one, why)) for one in loop})
            for one in loop:
                del parents[one]
    level_by_name: dict[str, int] = {}
    for name in sorted(tenants):
        _set_level(name, parents, level_by_name, detached)
    return parents


def _loop_of(name: str, parents: Mapping[str, str], settled: set[str]) -> list[str]:
    """The tenants of the loop that the parents of this one run into, from the first by name; empty if there is none."""
    way = [name]
    seen = {name: 0}
    while way[-1] not in settled and (above := parents.get(way[-1])) is not None:
        if above in seen:
            loop = way[seen[above] :]
            first = loop.index(min(loop))
            return loop[first:] + loop[:first]
        seen[above] = len(way)
        way.append(above)
    settled.update(way)
    return []


def _set_level(
    name: str, parents: dict[str, str], level_by_name: dict[str, int], detached: dict[str, tuple[Detached, str]]
) -> None:
    """Find the level of a tenant and of those above it, and put at the top whoever would be too deep."""
    way = [name]
    while way[-1] not in level_by_name and (above := parents.get(way[-1])) is not None:
        way.append(above)
    for one in reversed(way):
        if one in level_by_name:
            continue
        level = level_by_name[parents[one]] + 1 if one in parents else 1
        if level > MAX_LEVELS:
            del parents[one]
            why = f"it would be on level {MAX_LEVELS + 1}, and {MAX_LEVELS} levels are the most"
            detached[one] = (Detached.TOO_DEEP, _stands_alone(one, why))
            level = 1
        level_by_name[one] = level


def _stands_alone(name: str, why: str) -> str:
    return f"VirtualCluster {name} counts as a top-level one: {why}"


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _parts(wanted: Mapping[str, int], own: int) -> dict[str, int]:
    """Divide what is owned among those who ask for more together, in proportion; largest remainders, ties by name."""
    total = sum(wanted.values())
    if total <= own:
        return dict(wanted)
    parts = {name: amount * own // total for name, amount in wanted.items()}
    left = own - sum(parts.values())
    for name in sorted(wanted, key=lambda name: (-(wanted[name] * own % total), name))[:left]:
        parts[name] += 1
    return parts
