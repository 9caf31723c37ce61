"""Whether a gang would fit, were some running jobs gone. What must not live here: which jobs those are."""

from __future__ import annotations

from collections.abc import Iterable

from coda.model.job import NOTHING, Job, Resources
from coda.nodes.node_search import Kind

_ANYWHERE = ""


class Imagined:
    """The nodes of one kind of gang, with more room than there is. Judges as `Candidates.place` does."""

    def __init__(self, kind: Kind, replicas: int) -> None:
        self._kind = kind
        self._replicas = replicas
        self._room = kind.pool.room
        self._gained: dict[int, Resources] = {}
        kind.candidates.refresh()
        self._domains = None if kind.within is None else self._room.levels[kind.within].domain_by_node
        self._ranks: dict[str | None, int] = {_ANYWHERE: kind.candidates.ranks}
        if self._domains is not None:
            self._ranks = {}
            for number in kind.pool.amount_by_node:
                self._count(number, self._ranks_on(number))

    def fits(self) -> bool:
        """True when all ranks have room, in one domain where they must."""
        return max(self._ranks.values(), default=0) >= self._replicas

    def free(self, job: Job, nodes: Iterable[str], sign: int) -> bool:
        """This job is gone, or with `sign` -1 there again. False when that changes nothing for the gang."""
        matters = False
        for name in nodes:
            number = self._room.number_by_name.get(name)
            if number is None or number not in self._kind.pool.amount_by_node:
                continue
            before = self._ranks_on(number)
            self._gained[number] = self._gained.get(number, NOTHING) + job.request * sign
            self._count(number, self._ranks_on(number) - before)
            matters = True
        return matters

    def _ranks_on(self, number: int) -> int:
        free = self._room.free(number)
        gained = self._gained.get(number)
        return self._kind.request.times_in(free if gained is None else free + gained)

    def _count(self, number: int, ranks: int) -> None:
        domain = _ANYWHERE if self._domains is None else self._domains[number]
        self._ranks[domain] = self._ranks.get(domain, 0) + ranks
