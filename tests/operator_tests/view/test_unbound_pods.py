"""How many pods of a gang are created beside those that await volumes: their disks are not kube-scheduler's time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.lifecycle import RankPod
from coda.lifecycle.pacing import SMALL
from coda_operator.view.pods.unbound_pods import UnboundPods
from tests.core.gangs import NOW_S, pod

FIRST_ROOM = 100
DISK_S = 60.0


def waiting(rank: int, **changes: object) -> RankPod:
    return replace(pod(rank, node=None), **changes)  # type: ignore[arg-type]  # fields by name


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("changes", "room"),
    [
        pytest.param({}, SMALL, id="they wait for kube-scheduler"),
        pytest.param({"awaits_volume": True}, FIRST_ROOM, id="they wait for a disk"),
        pytest.param({"unschedulable_since_s": NOW_S}, FIRST_ROOM, id="they are refused"),
    ],
)
def test_only_pods_that_kube_scheduler_has_not_looked_at_are_in_the_way(changes: dict[str, object], room: int) -> None:
    unbound = UnboundPods(Clock())
    for rank in range(200):
        first = waiting(rank)
        unbound.see("other", first, None)
        unbound.see("other", waiting(rank, **changes), first)
    assert unbound.room("gang") == room


def test_the_time_that_a_disk_takes_is_not_the_time_of_kube_scheduler() -> None:
    clock = Clock()
    unbound = UnboundPods(clock)
    ranks = [waiting(rank, has_claims=True) for rank in range(FIRST_ROOM)]
    for rank in ranks:
        unbound.see("gang", rank, None)
    clock.now_s += DISK_S
    for number, rank in enumerate(ranks):
        unbound.see("gang", pod(number, has_claims=True), rank)
    assert unbound.room("another") == FIRST_ROOM


def test_the_rate_of_binding_is_measured_by_pods_without_claims() -> None:
    clock = Clock()
    unbound = UnboundPods(clock)
    for number in range(FIRST_ROOM):
        unbound.see("gang", waiting(number), None)
    clock.now_s += 2.0
    for number in range(FIRST_ROOM):
        unbound.see("gang", pod(number), waiting(number))
    assert unbound.room("another") < FIRST_ROOM / 2
