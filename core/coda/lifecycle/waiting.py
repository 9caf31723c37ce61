"""The waiting clock: it counts from the last moment at which the job began to wait, see `transitions.enqueue`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from coda.lifecycle.state import Progress
from coda.model.job import Phase


class GangSize(NamedTuple):
    """What a gang asks for. `amounts`: of one rank, by resource."""

    replicas: int
    amounts: Mapping[str, int]


def is_enlarged(before: GangSize, after: GangSize) -> bool:
    """True if a gang has more ranks than before, or its ranks ask for more of anything."""
    more = any(amount > before.amounts.get(name, 0) for name, amount in after.amounts.items())
    return more or after.replicas > before.replicas


def after_acceptance(
    before: Progress, after: Progress, size_before: GangSize | None, size: GangSize, now_s: float
) -> Progress:
    """Return `after`, the progress of a job that is accepted at this size.

    If an edit enlarged it, it waits from now on and goes to the end of the queue: else a small job that cannot start
    would keep a place for a large one."""
    edited = before.generation != after.generation and after.phase is Phase.QUEUED
    if not edited or size_before is None or not is_enlarged(size_before, size):
        return after
    return replace(after, queued_s=now_s, waiting_s=now_s)
