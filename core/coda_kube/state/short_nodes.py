"""Nodes that lack devices for a moment: while a device plugin starts again, its node offers none of its resource.

Without this memory the GPUs of such nodes would be gone for these seconds: the pool would be full, gangs would stop
for whoever can start a moment later, jobs that fit would never fit, and CPU jobs would get the cores beside the GPUs as
their own. So the node counts with what it had, and what it lacks is held back: nobody gets it before it is offered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from coda.model import NOTHING, Node, Resources
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GROUP
from coda_kube.objects.pod_requests import resources_reported
from coda_kube.objects.read import node_from_json

SHORT_S: Final = 120.0
"""After this time the node counts with what it offers. Our choice: a plugin starts again within seconds, and after an
upgrade within a minute; a node whose GPUs are taken away for good misleads nobody for long."""


class _Short(NamedTuple):
    had: Resources
    until_s: float


class ShortNodes:
    """What each node offers, and what it had before, if that was more and not long ago. `clock`: only grows.

    What it remembers may be lost: a new process counts what the node's capacity says besides, for as long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offered_by_name: dict[str, Node] = {}  # as the objects say
        self._short_by_name: dict[str, _Short] = {}
        self.missing_by_name: dict[str, Resources] = {}  # what is held back of each short node

    def note(self, name: str, item: Json | None) -> tuple[Node | None, bool]:
        """A node came, changed or went. Returns it with what it has for the planner, and whether it lacks something
        else than before.

        How long it may be short counts from the first fall, however often it falls and rises before it is whole."""
        node = node_from_json(item) if item is not None else None  # first: if it cannot be read, nothing changes
        before, short = self._offered_by_name.pop(name, None), self._short_by_name.pop(name, None)
        lacked = self.missing_by_name.pop(name, NOTHING)
        if node is None:
            return None, lacked is not NOTHING
        self._offered_by_name[name] = node
        if short is None:
            had = _capacity(item or {}) if before is None else before.allocatable
            short = _Short(had, self._clock() + SHORT_S)
        missing = _missing(short.had, node.allocatable)
        if missing is NOTHING or self._clock() >= short.until_s:
            return node, lacked is not NOTHING
        self._short_by_name[name], self.missing_by_name[name] = short, missing
        return replace(node, allocatable=node.allocatable + missing), missing != lacked

    def pop_over(self) -> list[Node]:
        """Return the nodes that have been short for too long, as they are; they count so from now on."""
        now_s = self._clock()
        over = [name for name, short in self._short_by_name.items() if now_s >= short.until_s]
        for name in over:
            del self._short_by_name[name], self.missing_by_name[name]
        return [self._offered_by_name[name] for name in over]

    def next_over_in_s(self) -> float | None:
        """How long until `pop_over` returns one; None if no node is short."""
        until_s = min((short.until_s for short in self._short_by_name.values()), default=None)
        return None if until_s is None else max(0.0, until_s - self._clock())


def _capacity(item: Json) -> Resources:
    return resources_reported((item.get("status") or {}).get("capacity") or {})


def _missing(had: Resources, offered: Resources) -> Resources:
    """The devices that are not offered any more; `NOTHING` without any. Coda's own are seats, which an agent offers
    only while it works."""
    other = {
        name: amount - offered.other.get(name, 0)
        for name, amount in had.other.items()
        if "/" in name and not name.startswith(f"{GROUP}/") and amount > offered.other.get(name, 0)
    }
    gpus = max(0, had.gpus - offered.gpus)
    return Resources(gpus=gpus, other=other) if gpus or other else NOTHING
