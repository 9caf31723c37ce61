"""The schedule of faults is a pure function of the seed, spread over all parts."""

from __future__ import annotations

from collections import Counter

import pytest

from coda_lab.experiments.chaos.schedule import (
    CUT,
    CUTS,
    DOWN_S,
    LEADERS,
    LONGER_THAN_A_LEASE_S,
    Fault,
    Kind,
    Target,
    salvos,
    schedule,
)

GOLDEN = [
    ("etcd", "stop", 1.829, 14.014, 0.0, False),
    ("standby planner", "delay", 1.152, 13.125, 0.739, True),
    ("kube-scheduler", "drop", 1.592, 13.902, 0.0, False),
    ("etcd", "kill", 0.125, 1.769, 0.0, True),
    ("standby operator", "kill", 0.311, 2.31, 0.0, False),
    ("kube-apiserver", "kill", 0.958, 1.963, 0.0, True),
    ("standby planner", "kill", 1.812, 2.94, 0.0, False),
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
        is_short = DOWN_S[0] <= each.lasts_s <= DOWN_S[1]
        outlasts_a_lease = LONGER_THAN_A_LEASE_S[0] <= each.lasts_s <= LONGER_THAN_A_LEASE_S[1]
        assert (
            outlasts_a_lease
            if each.kind is not Kind.KILL
            else is_short or (outlasts_a_lease and each.target in LEADERS)
        )
        assert (each.delay_s > 0) is (each.kind is Kind.DELAY)
        if each.kind in CUTS:
            assert each.target in CUT


def test_killed_leaders_come_back_soon_or_after_the_standby_took_over() -> None:
    kills = [each for each in schedule(1, kills=100, stops=0, cuts=0) if each.target in LEADERS]
    assert {each.lasts_s > LONGER_THAN_A_LEASE_S[0] for each in kills} == {True, False}


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
