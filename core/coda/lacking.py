"""Which resource is short, judged on what a round leaves free. What must not live here: words, and choices of nodes.

A resource is what is lacking when the gang would fit if it asked for none of it. Nodes are looked at in the order of
what they have most of, so that both answers, it would fit and it would not, come after few of them.
"""

from __future__ import annotations

from dataclasses import replace

from coda.model import NOTHING, Resources
from coda.room import Room
from coda.searching import Kind, Match
from coda.wording import CPU, GPUS, MAIN, MEMORY, PODS, amount_of


class Rest:
    """What is free at the end of a round, for each demand's accepting nodes. The room must not change any more."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._richest: dict[tuple[Match, str], list[int]] = {}
        self._totals: dict[tuple[Match, str], int] = {}

    def lacking(self, kind: Kind, replicas: int) -> str | None:
        """The resource that alone stands in the way; GPUs, cores, memory, pod slots, others by name when several do."""
        names = (name for name in (*MAIN, *sorted(kind.request.other)) if amount_of(kind.request, name))
        return next((name for name in names if self._fits_without(kind, name, replicas)), None)

    def is_enough(self, kind: Kind, name: str, replicas: int) -> bool:
        """True when all usable nodes together have as much of a resource as the gang needs, wherever it is."""
        total = self._totals.get((kind.match, name))
        if total is None:
            total = sum(self._amount(number, name) for number in kind.match.accepting)
            self._totals[kind.match, name] = total
        total -= sum(self._amount(number, name) for number in kind.avoided(self._room))
        return total >= amount_of(kind.request, name) * replicas

    def _amount(self, number: int, name: str) -> int:
        return max(0, amount_of(self._room.free[number], name))

    def _fits_without(self, kind: Kind, name: str, replicas: int) -> bool:
        rest, free = _without(kind.request, name), self._room.free
        avoided = kind.avoided(self._room)
        if rest == NOTHING:
            return len(kind.match.accepting) > len(avoided)
        scarcest = next(name for name in (*MAIN, *sorted(rest.other)) if amount_of(rest, name))
        least = amount_of(rest, scarcest)
        for number in self._richest_nodes(kind.match, scarcest):
            if amount_of(free[number], scarcest) < least:
                return False
            if number not in avoided:
                replicas -= rest.times_in(free[number])
                if replicas <= 0:
                    return True
        return False

    def _richest_nodes(self, match: Match, name: str) -> list[int]:
        numbers = self._richest.get((match, name))
        if numbers is None:
            free = self._room.free
            numbers = sorted(match.accepting, key=lambda number: (-amount_of(free[number], name), number))
            self._richest[match, name] = numbers
        return numbers


def _without(request: Resources, name: str) -> Resources:
    if name == GPUS:
        return replace(request, gpus=0)
    if name == CPU:
        return replace(request, cpu_m=0)
    if name == MEMORY:
        return replace(request, memory_bytes=0)
    if name == PODS:
        return replace(request, pods=0)
    return replace(request, other={other: amount for other, amount in request.other.items() if other != name})
