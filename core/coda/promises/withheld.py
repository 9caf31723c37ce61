"""What nobody else may take in one cycle: jobs need it that cannot start yet."""

from __future__ import annotations

from coda.cache.world_index import WorldIndex
from coda.model.job import Job
from coda.model.resources import NOTHING, Resources


class Withheld:
    """Nobody finds it free until `release`."""

    def __init__(self, index: WorldIndex) -> None:
        self._index = index
        self._by_node: dict[int, Resources] = {}
        self._charges: list[tuple[Job, tuple[str, ...]]] = []

    def withhold(self, job: Job, shares: list[tuple[int, int]]) -> None:
        """The job needs what is free on these nodes, by number, for so many of its ranks each."""
        taken = {number: job.request * ranks for number, ranks in shares}
        self._index.set_free({number: self._index.capacity.free(number) - amount for number, amount in taken.items()})
        for number, amount in taken.items():
            self._by_node[number] = self._by_node.get(number, NOTHING) + amount

    def for_claim(self, job: Job, shares: list[tuple[int, int]]) -> None:
        """The job starts there once those are gone that stopped for it: its tenant's limits count both till then.

        So it counts for its tenant, too: else a smaller job might take what the limits leave."""
        self.withhold(job, shares)
        tenants, nodes = self._index.tenants, self._index.capacity.nodes
        if tenants is not None:
            names = tuple([nodes[number].name for number, ranks in shares for _ in range(ranks)])
            tenants.add(job, names)
            self._charges.append((job, names))

    def release(self) -> None:
        """Withhold nothing any more."""
        capacity, tenants = self._index.capacity, self._index.tenants
        self._index.set_free({number: capacity.free(number) + amount for number, amount in self._by_node.items()})
        self._by_node = {}
        if tenants is not None:
            for job, names in self._charges:
                tenants.remove(job, names)
        self._charges = []
