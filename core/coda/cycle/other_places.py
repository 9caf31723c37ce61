"""Whether guests of the large sub-array can go on elsewhere at once, so that moving them delays them little."""

from __future__ import annotations

from collections.abc import Iterable

from coda.cache.array_capacity import ArrayCapacity
from coda.model.job import Job
from coda.model.resources import NOTHING, Resources
from coda.nodes.node_search import RankClass


def have_other_places(arrays: ArrayCapacity, guests: Iterable[Job], taken: tuple[int, ...]) -> bool:
    """True if all ranks of these guests fit together on nodes that are not `taken`, largest guest first.

    What borrowing CPU jobs hold there counts as free, since they give it back. A gang that needs one domain must fit
    on one node. O(guests x nodes that hold a rank)."""
    used: dict[int, Resources] = {}
    return all(
        _settle(guest, arrays.guest_rank_class(guest), taken, used)
        for guest in sorted(guests, key=lambda guest: (-guest.request.gpus, -guest.request.cpu_m, guest.id))
    )


def _settle(guest: Job, rank_class: RankClass, taken: tuple[int, ...], used: dict[int, Resources]) -> bool:
    """Count the guest's ranks as `used` where they fit. False if some do not."""
    groups, request, missing = rank_class.groups, guest.request, guest.replicas
    rank_class.candidates.refresh()
    if not rank_class.candidates.may_hold(missing):
        return False
    amounts = groups.capacity.amounts
    enough = {amount for amount in groups.nodes_by_amount if request.times_in(amounts[amount])}
    for number, amount in groups.amount_by_node.items():
        if amount not in enough or number in taken:
            continue
        free = amounts[amount] - used[number] if number in used else amounts[amount]
        ranks = min(missing, request.times_in(free))
        if not ranks or (rank_class.within is not None and ranks < guest.replicas):
            continue
        used[number] = used.get(number, NOTHING) + request * ranks
        missing -= ranks
        if not missing:
            return True
    return False
