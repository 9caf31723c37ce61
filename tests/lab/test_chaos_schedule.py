"""The schedule of faults is a pure function of the seed, spread over all parts."""

from __future__ import annotations

from collections import Counter

import pytest

from coda_lab.chaos.schedule import (
    CUT,
    CUTS,
    DOWN_S,
    LONGER_THAN_A_LEASE_S,
    Fault,
    Kind,
    Target,
    salvos,
    schedule,
)

GOLDEN = [
    ("etcd", "kill", 1.529, 1.019, 0.0, False),
    ("operator", "stop", 3.827, 14.715, 0.0, False),
    ("standby", "reset", 0.584, 13.251, 0.0, False),
    ("planner", "kill", 2.187, 1.83, 0.0, False),
    ("standby", "kill", 1.065, 2.546, 0.0, True),
    ("planner", "reset", 1.209, 14.597, 0.0, False),
    ("kube-scheduler", "kill", 0.577, 2.049, 0.0, True),
]


def test_the_schedule_of_a_seed_never_changes() -> None:
    """Golden: a report names only the seed, so another version must make the same schedule of it."""
    found = schedule(7, kills=4, stops=1, cuts=2)
    assert [
        (each.target.value, each.kind.value, each.pause_s, each.lasts_s, each.delay_s, each.joins) for each in found
    ] == GOLDEN


@pytest.mark.parametrize("seed", range(5))
def test_every_part_is_killed_equally_often(seed: int) -> None:
    kills = Counter(each.target for each in schedule(seed, kills=50, stops=10, cuts=10) if each.kind is Kind.KILL)
    assert set(kills) == set(Target)
    assert sum(kills.values()) == 50
    assert max(kills.values()) - min(kills.values()) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_stops_and_cuts_outlast_a_lease_and_only_clients_are_cut(seed: int) -> None:
    for each in schedule(seed, kills=10, stops=10, cuts=24):
        shortest_s, longest_s = DOWN_S if each.kind is Kind.KILL else LONGER_THAN_A_LEASE_S
        assert shortest_s <= each.lasts_s <= longest_s
        assert (each.delay_s > 0) is (each.kind is Kind.DELAY)
        if each.kind in CUTS:
            assert each.target in CUT


def test_other_seeds_give_other_schedules() -> None:
    assert len({schedule(seed, kills=10, stops=2, cuts=2) for seed in range(20)}) == 20


def test_a_salvo_is_a_fault_and_at_most_one_that_joins_it_on_another_part() -> None:
    faults = schedule(3, kills=200, stops=40, cuts=40)
    found = salvos(faults)
    assert tuple(fault for salvo in found for fault in salvo) == faults
    assert {len(salvo) for salvo in found} == {1, 2}
    for salvo in found:
        assert [fault.joins for fault in salvo] == [False, True][: len(salvo)]
        assert len({fault.target for fault in salvo}) == len(salvo)


def test_no_faults_make_no_salvos() -> None:
    nothing: tuple[Fault, ...] = schedule(1, kills=0, stops=0, cuts=0)
    assert salvos(nothing) == ()
