"""Keeps others from the nodes that are kept for a job, while one cycle starts them."""

from __future__ import annotations

from types import TracebackType

from coda.cache.world_index import WorldIndex
from coda.model.job import JobId
from coda.model.resources import Resources
from coda.promises.earliest_start import amount_for
from coda.promises.reserved_nodes import Kept, LeftForOthers


class PromiseHold:
    """While it is entered, others find on the kept nodes only what is left for them, and protected nodes are safe.

    Without kept nodes it does nothing."""

    def __init__(self, index: WorldIndex, kept: Kept | None) -> None:
        self._index = index
        self._kept = kept
        self._left: LeftForOthers = {} if kept is None else kept.left_for_others
        self._free = {number: index.capacity.free(number) for number in self._left}
        self._rest: dict[int, Resources] = {}  # of what was left for others
        self.kept_nodes = frozenset([index.capacity.nodes[number].name for number in self._left])

    def __enter__(self) -> None:
        if self._kept is None:
            return
        self._index.set_free(self._left)
        if self._index.arrays is not None:
            self._index.arrays.protect_nodes(self._kept.protected)
        if self._index.running is not None:
            self._index.running.safe_nodes = self.kept_nodes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put back what was kept, less what others took beside it."""
        if self._kept is None:
            return
        free = self.free_for(self._kept.job.id)
        self._rest = {number: self._index.capacity.free(number) for number in self._left}
        self._index.set_free(free)
        if self._index.arrays is not None:
            self._index.arrays.unprotect_nodes()
        if self._index.running is not None:
            self._index.running.safe_nodes = frozenset()

    def free_for(self, job: JobId) -> dict[int, Resources]:
        """Return what the job that nodes are kept for finds on them, while it is entered; nothing for others.

        What others took beside it is gone."""
        if self._kept is None or self._kept.job.id != job:
            return {}
        free_now = self._index.capacity.free
        return {number: self._free[number] - (left - free_now(number)) for number, left in self._left.items()}

    def keeps_idle(self, request: Resources) -> bool:
        """True if a rank with this request fits on a kept node, and not beside what is kept there."""
        free = self._index.capacity.free
        return any(request.fits_in(free(n)) and not request.fits_in(rest) for n, rest in self._rest.items())

    def count_idle(self) -> None:
        """The starts of the cycle are done: what is still idle is at the cost of the promise."""
        if self._kept is None:
            return
        job, free = self._kept.job, self._index.capacity.free
        self._kept.promise.idle = sum(
            max(0.0, amount_for(job, free(number)) - max(0.0, amount_for(job, rest)))
            for number, rest in self._rest.items()
        )
