"""What the jobs of each array hold and wait for, as running sums."""

from __future__ import annotations

from typing import Final, NamedTuple

from coda.model import Job
from coda.model.live_placement import is_waiting, live_placement
from coda.model.seats import is_sharer
from coda.policy.arrays import Array, array_of


class ArrayAmounts(NamedTuple):
    """Sums over the jobs of one array, all ranks counted. `borrowed_cpu_m` is a part of `cpu_m`."""

    running: int = 0
    gpus: int = 0
    cpu_m: int = 0
    borrowed_cpu_m: int = 0  # cores of the GPU array that CPU jobs give back when it needs them
    waiting: int = 0
    waiting_gpus: int = 0
    waiting_cpu_m: int = 0


_NOTHING: Final = ArrayAmounts()


class ArraySums:
    """Adds up jobs as they come, change and go, each in O(1)."""

    def __init__(self) -> None:
        self.amounts_by_array: dict[Array, ArrayAmounts] = dict.fromkeys(Array, _NOTHING)

    def count(self, before: Job | None, after: Job | None) -> None:
        """A job came, changed or went."""
        for job, sign in ((before, -1), (after, 1)):
            if job is not None and (amounts := _of(job)) is not _NOTHING:
                array = array_of(job)
                sums = zip(self.amounts_by_array[array], amounts, strict=True)
                self.amounts_by_array[array] = ArrayAmounts(*[whole + sign * part for whole, part in sums])


def _of(job: Job) -> ArrayAmounts:
    """What one job adds. A job without a live placement that does not wait either adds nothing, nor does a
    sharer."""
    if is_sharer(job):  # it has what the arrays leave
        return _NOTHING
    gpus, cpu_m = job.request.gpus * job.replicas, job.request.cpu_m * job.replicas
    if is_waiting(job):
        return ArrayAmounts(waiting=1, waiting_gpus=gpus, waiting_cpu_m=cpu_m)
    placement = live_placement(job)
    if placement is None:
        return _NOTHING
    return ArrayAmounts(running=1, gpus=gpus, cpu_m=cpu_m, borrowed_cpu_m=cpu_m if placement.borrows else 0)
