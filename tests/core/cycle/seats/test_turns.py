"""Whose turn it is to get a seat: no quota is charged for one, and all the same no tenant has them all for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.model import Job
from tests.builders import seat_node, seated, world
from tests.core.cycle.seats.test_seats import cycle, places, rider

NODES = [seat_node("n1"), seat_node("n2")]


def of(tenant: str, number: int, *, queued_s: float, priority: int = 0, replicas: int = 1) -> Job:
    asks = rider(f"{tenant}{number}", gpu_gib=1, replicas=replicas)
    return replace(asks, virtual_cluster=tenant, queued_s=queued_s, priority=priority)


def starts(*jobs: Job) -> list[str]:
    return sorted(name.removeprefix("team/") for name in places(cycle(world(NODES, jobs))))


def test_tenants_take_turns_with_what_is_free() -> None:
    """In the order of the queue, the first one of eight jobs had every seat, and the other one waited for ever."""
    first = [of("a", number, queued_s=1.0 + number) for number in range(9)]
    later = [of("b", number, queued_s=50.0 + number) for number in range(3)]
    assert starts(*first, *later) == ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"]


def test_who_holds_fewer_seats_goes_first() -> None:
    held = [seated(of("a", number, queued_s=0.0), (("n1", "n2")[number // 4], 0)) for number in range(6)]
    earlier = [of("a", 10 + number, queued_s=1.0) for number in range(2)]
    assert starts(*held, *earlier, of("b", 0, queued_s=9.0)) == ["a10", "b0"]
    assert starts(*held, *earlier, *(of("b", number, queued_s=9.0) for number in range(2))) == ["b0", "b1"]


@pytest.mark.parametrize(("priority", "expected"), [(0, ["b0", "b1"]), (1, ["a10", "a11"])])
def test_a_higher_priority_goes_first_all_the_same(priority: int, expected: list[str]) -> None:
    held = [seated(of("a", number, queued_s=0.0), (("n1", "n2")[number // 4], 0)) for number in range(6)]
    asking = [of("a", 10 + number, queued_s=1.0, priority=priority) for number in range(2)]
    assert starts(*held, *asking, *(of("b", number, queued_s=9.0) for number in range(2))) == expected


def test_a_gang_counts_as_many_seats_as_it_has_ranks() -> None:
    gang = of("a", 0, queued_s=0.0, replicas=2)
    jobs = [gang, *(of("a", 1 + number, queued_s=1.0) for number in range(6))]
    assert starts(*jobs, *(of("b", number, queued_s=9.0) for number in range(4))) == [
        "a0",
        "a1",
        "a2",
        "b0",
        "b1",
        "b2",
        "b3",
    ]


def test_of_one_tenant_the_queue_decides() -> None:
    jobs = [of("a", number, queued_s=100.0 - number) for number in range(10)]
    assert starts(*jobs) == [f"a{number}" for number in range(2, 10)]
