"""Who gets a seat on which GPU, who waits and why, and who leaves for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import Job, Node, Phase, WaitCode, World
from coda.model.decision import Stop, StopCause
from coda.model.job import JobId, SharingWish, Wish, WriteTrouble
from coda.placements.filter_rules import InFlight
from coda.policy import Level, PolicyConfig
from tests.builders import (
    job,
    node,
    opportunistic,
    planned,
    quota,
    resources,
    running,
    seat_node,
    seated,
    stopping,
    with_starts,
    world,
)

NOW_S = 1000.0
ON = PolicyConfig(shares_gpus=True, policy="coda")
OFF = PolicyConfig(policy="coda")


def cycle(of: World, config: PolicyConfig = ON, now_s: float = NOW_S) -> CycleResult:
    return run_cycle(CycleSnapshot(world=of, epoch=1, now_s=now_s), config, CycleCache())


def places(result: CycleResult) -> dict[str, tuple[tuple[str, int], ...]]:
    """Of those that start on seats: node and GPU of each rank."""
    return {
        start.job: tuple(zip(start.nodes, start.gpus, strict=True)) for start in result.decision.starts if start.gpus
    }


def codes(result: CycleResult) -> dict[str, WaitCode]:
    return {refusal.job: refusal.code for refusal in result.decision.refusals}


def rider(name: str, *, gpu_gib: float = 10, cores: float = 1, replicas: int = 1, within: str | None = None) -> Job:
    return opportunistic(job(name, cores=cores, replicas=replicas, within=within), gpu_gib=gpu_gib)


def test_four_share_a_gpu_and_the_fifth_waits_for_a_seat() -> None:
    jobs = [replace(rider(f"j{number}"), queued_s=float(number)) for number in range(5)]
    result = cycle(world([seat_node("n1")], jobs))
    assert places(result) == {f"team/j{number}": (("n1", 0),) for number in range(4)}
    assert codes(result) == {"team/j4": WaitCode.SEATS_TAKEN}
    (refusal,) = result.decision.refusals
    assert "1 have no seat left" in refusal.message
    assert result.gpus_wanted == 0
    seated_now = world([seat_node("n1")], [*(seated(one, ("n1", 0)) for one in jobs[:4]), jobs[4]])
    (refusal,) = cycle(seated_now).decision.refusals
    assert refusal.holders == tuple(f"team/j{number}" for number in range(4))


def test_each_prefers_a_gpu_of_its_own_while_there_is_one() -> None:
    result = cycle(world([seat_node("n1", gpus=2), seat_node("n2")], [rider("a"), rider("b"), rider("c"), rider("d")]))
    assert sorted(place for (place,) in places(result).values()) == [("n1", 0), ("n1", 0), ("n1", 1), ("n2", 0)]


def test_memory_peaks_fit_the_card_together() -> None:
    result = cycle(world([seat_node("n1")], [rider("a", gpu_gib=50), rider("b", gpu_gib=40), rider("c", gpu_gib=30)]))
    assert set(places(result)) == {"team/a", "team/c"}
    assert codes(result) == {"team/b": WaitCode.GPU_MEMORY_TAKEN}


def test_a_job_whose_memory_nobody_knows_has_a_gpu_without_neighbours() -> None:
    result = cycle(world([seat_node("n1")], [rider("a", gpu_gib=0), rider("b", gpu_gib=1)]))
    assert places(result) == {"team/a": (("n1", 0),)}
    assert codes(result) == {"team/b": WaitCode.GPU_MEMORY_TAKEN}
    unlabelled = cycle(world([seat_node("n1", gpu_gib=None)], [rider("a"), rider("b")]))
    assert (set(places(unlabelled)), codes(unlabelled)) == ({"team/a"}, {"team/b": WaitCode.GPU_MEMORY_TAKEN})


def test_where_another_job_has_a_whole_gpu_nobody_knows_which_so_no_seat_is_given() -> None:
    whole = running(job("whole", gpus=1), "n1")
    result = cycle(world([seat_node("n1", gpus=8)], [whole, rider("a")]))
    assert codes(result) == {"team/a": WaitCode.GPUS_NOT_KNOWN}
    elsewhere = cycle(world([seat_node("n1", gpus=8), seat_node("n2")], [whole, rider("a")]))
    assert places(elsewhere) == {"team/a": (("n2", 0),)}


def test_a_stopped_job_keeps_its_whole_gpu_from_seats_until_its_pods_are_gone() -> None:
    leaves = stopping(running(job("whole", gpus=1), "n1"))
    result = cycle(world([seat_node("n1")], [leaves, rider("a")], leaving={"n1": leaves.request}))
    assert (places(result), codes(result)) == ({}, {"team/a": WaitCode.GPUS_NOT_KNOWN})
    assert places(cycle(world([seat_node("n1")], [rider("a")]))) == {"team/a": (("n1", 0),)}


def test_a_seat_that_a_stranger_has_closes_its_gpu() -> None:
    foreign = {"n1": resources(pods=1, **{"coda.scheduler/gpu-0": 1})}
    result = cycle(world([seat_node("n1", gpus=2)], [rider("a"), rider("b")], foreign=foreign))
    assert places(result) == {"team/a": (("n1", 1),), "team/b": (("n1", 1),)}


def test_a_gang_gets_as_many_gpus_as_ranks_on_one_node_if_it_can() -> None:
    nodes = [seat_node("n1", gpus=2), seat_node("n2", gpus=4)]
    assert places(cycle(world(nodes, [rider("gang", replicas=4)]))) == {
        "team/gang": (("n2", 0), ("n2", 1), ("n2", 2), ("n2", 3))
    }
    assert len(places(cycle(world(nodes, [rider("gang", replicas=6)])))["team/gang"]) == 6


def reason(jobs: list[Job], nodes: list[Node], config: PolicyConfig = ON) -> tuple[WaitCode, str]:
    refusals = {refusal.job: refusal for refusal in cycle(world(nodes, jobs), config).decision.refusals}
    refusal = refusals[JobId("team/waits")]
    return refusal.code, refusal.message


WAITS = {
    "sharing is off": ([rider("waits")], [seat_node("n1")], OFF, WaitCode.SHARING_OFF, "this installation shares none"),
    "no seats": ([rider("waits")], [node("n1")], ON, WaitCode.NO_SEATS, "no node that accepts its pods offers seats"),
    "too large": (
        [rider("waits", gpu_gib=81)],
        [seat_node("n1")],
        ON,
        WaitCode.NEVER_FITS,
        "even empty, 0 of the 1 GPU",
    ),
    "too many": ([rider("waits", replicas=3)], [seat_node("n1", gpus=2)], ON, WaitCode.NEVER_FITS, "even empty, 2"),
    "no cores": (
        [running(job("cpu", gpus=0, cores=47), "n1"), rider("waits", cores=2)],
        [seat_node("n1")],
        ON,
        WaitCode.INSUFFICIENT_CPU,
        "1 are on nodes without the cores",
    ),
    "cordoned": (
        [rider("waits")],
        [replace(seat_node("n1"), schedulable=False)],
        ON,
        WaitCode.NO_USABLE_NODE,
        "not ready",
    ),
    "within a rack": (
        [rider("waits", replicas=2, within="rack")],
        [replace(seat_node("n1"), labels={"topology.coda.scheduler/rack": "r1"}), seat_node("n2")],
        ON,
        WaitCode.NO_DOMAIN_FITS,
        "no rack has 2 of them",
    ),
    "racks of two zones with one name": (
        [rider("waits", replicas=2, within="rack")],
        [
            replace(seat_node(zone), labels={"zone": zone, "topology.coda.scheduler/rack": "r1"})
            for zone in ("east", "west")
        ],
        replace(ON, levels=(Level("zone", "zone"), Level("rack", "topology.coda.scheduler/rack"))),
        WaitCode.NO_DOMAIN_FITS,
        "no rack has 2 of them",
    ),
    "no such level": (
        [rider("waits", within="moon")],
        [seat_node("n1")],
        ON,
        WaitCode.UNKNOWN_LEVEL,
        "'moon', which is not configured",
    ),
    "too slow": (
        [*(seated(rider(f"s{number:02}", gpu_gib=1), ("n1", 0)) for number in range(10)), rider("waits", gpu_gib=1)],
        [seat_node("n1", seats=20)],
        ON,
        WaitCode.GPUS_TOO_BUSY,
        "the best would give 9%",
    ),
    "its pods leave": (
        [replace(rider("waits"), unbound={0: "n1"})],
        [seat_node("n1")],
        ON,
        WaitCode.ROLLING_BACK,
        "still being deleted",
    ),
    "edited": ([replace(rider("waits"), edited=True)], [seat_node("n1")], ON, WaitCode.EDITED, "was edited"),
    "not written": (
        [replace(rider("waits"), unwritable=WriteTrouble.REFUSED)],
        [seat_node("n1")],
        ON,
        WaitCode.STATUS_UNWRITABLE,
        "refuses to store",
    ),
    "backs off": (
        [replace(rider("waits"), not_before_s=NOW_S + 1)],
        [seat_node("n1")],
        ON,
        WaitCode.BACKING_OFF,
        "after a pause",
    ),
}


@pytest.mark.parametrize(("jobs", "nodes", "config", "code", "words"), WAITS.values(), ids=list(WAITS))
def test_says_why_it_waits(
    jobs: list[Job], nodes: list[Node], config: PolicyConfig, code: WaitCode, words: str
) -> None:
    found, message = reason(jobs, nodes, config)
    assert (found, words in message) == (code, True), message


def test_a_resource_quota_counts_but_not_its_whole_gpus() -> None:
    asks = replace(rider("a"), quota={"pods": 1000, "requests.nvidia.com/gpu": 1000})
    gpus = quota(hard={"requests.nvidia.com/gpu": 0})
    assert places(cycle(world([seat_node("n1")], [asks], quotas=[gpus]))) == {"team/a": (("n1", 0),)}
    pods = quota(hard={"pods": 1000})
    result = cycle(world([seat_node("n1")], [asks, replace(asks, id=JobId("team/b"), uid="b")], quotas=[pods]))
    assert (set(places(result)), codes(result)) == ({"team/a"}, {"team/b": WaitCode.QUOTA_EXCEEDED})


def test_a_guaranteed_job_starts_where_opportunistic_ones_are_as_if_they_were_not() -> None:
    """It takes the memory that they hold: the youngest stops, and nobody starts on seats meanwhile."""
    old = seated(rider("old", cores=20), ("n1", 0), since_s=1.0)
    young = seated(rider("young", cores=20), ("n1", 0), since_s=2.0)
    result = cycle(world([seat_node("n1")], [old, young, job("first", cores=20), rider("waits")]))
    assert [(start.job, start.nodes, start.gpus) for start in result.decision.starts] == [("team/first", ("n1",), ())]
    assert result.decision.stops == (Stop(job=young.id, attempt=1, cause=StopCause.PREEMPT, by=JobId("team/first")),)
    assert codes(result) == {"team/waits": WaitCode.GPUS_NOT_KNOWN}


def test_a_taken_seat_makes_no_node_better_or_worse_for_others() -> None:
    """Seats are no free capacity that a job with GPUs of its own could use."""
    nodes = [seat_node("n1", gpus=2), seat_node("n2", gpus=2)]
    asks = job("asks", gpus=0, cores=1)
    sitting = [seated(rider(f"s{number}"), place) for number, place in enumerate([("n1", 0), ("n2", 0), ("n2", 1)])]
    (alone,) = cycle(world(nodes, [asks])).decision.starts
    assert cycle(world(nodes, [asks, *sitting])).decision.starts == (alone,)


def test_nobody_stops_where_all_fit() -> None:
    result = cycle(world([seat_node("n1")], [seated(rider("a"), ("n1", 0)), job("first")]))
    assert [start.job for start in result.decision.starts] == ["team/first"]
    assert result.decision.stops == ()


@pytest.mark.parametrize("offers", [0, None], ids=["at zero", "not named"])
@pytest.mark.parametrize("lost", ["coda.scheduler/gpu-0", "coda.scheduler/sharing", "rdma/hca"])
def test_nobody_stops_for_what_a_node_offers_no_more_and_nobody_asks_for(lost: str, offers: int | None) -> None:
    """A device plugin, for one the agent's, starts again: the pods keep what they have of it."""
    sits = seated(opportunistic(job("sits", other={"rdma/hca": 1}), gpu_gib=10), ("n1", 0))
    there = seat_node("n1", gpus=2)
    usual = {**there.allocatable.other, "rdma/hca": 4}
    offered = {name: amount for name, amount in usual.items() if name != lost}
    if offers is not None:
        offered[lost] = offers
    now = replace(there, allocatable=replace(there.allocatable, other=offered))
    result = cycle(world([now], [sits, job("first")]))
    assert [start.job for start in result.decision.starts] == ["team/first"]
    assert result.decision.stops == ()


def test_the_stop_is_ordered_again_until_it_is_written() -> None:
    there = world([seat_node("n1")], [seated(rider("a", cores=40), ("n1", 0)), job("first", cores=20)])
    first = cycle(there)
    committed = with_starts(there, first.decision.starts, ON, NOW_S)
    again = cycle(committed)
    assert again.decision.stops == first.decision.stops
    assert again.decision.starts == ()


def test_what_a_stopped_one_leaves_is_for_whom_it_stopped() -> None:
    leaves = stopping(seated(rider("a", cores=40), ("n1", 0)), StopCause.PREEMPT)
    first = world([seat_node("n1")], [leaves, job("first", cores=20)], leaving={"n1": leaves.request})
    result = cycle(first)
    assert ([start.job for start in result.decision.starts], result.decision.stops) == (["team/first"], ())


def test_nobody_stops_for_foreign_pods_that_may_land_elsewhere() -> None:
    """The pod counts on both nodes. It is in the way of nobody on n2, and on n1 once it is there."""
    nodes = [seat_node("n1", cores=8), seat_node("n2", cores=8)]
    sits, first = seated(rider("a", cores=4), ("n1", 0)), planned(job("first", gpus=0, cores=4), "n1")
    request = resources(cores=3, pods=1)
    there = CycleSnapshot(world=world(nodes, [sits, first]), epoch=1, now_s=1.0)

    def stopped(snapshot: CycleSnapshot) -> list[str]:
        return [stop.job for stop in run_cycle(snapshot, ON, CycleCache()).decision.stops]

    assert stopped(replace(there, foreign=(InFlight(uid="p", request=request, nodes=None),))) == []
    assert stopped(replace(there, foreign=(InFlight(uid="p", request=request, nodes=("n1", "n2")),))) == []
    assert stopped(replace(there, world=world(nodes, [sits, first], in_flight={"n1": request}))) == []
    assert stopped(replace(there, world=world(nodes, [sits, first], foreign={"n2": request}))) == []
    assert stopped(replace(there, world=world(nodes, [sits, first], foreign={"n1": request}))) == [sits.id]
    assert stopped(replace(there, foreign=(InFlight(uid="p", request=request, nodes=("n1",)),))) == [sits.id]


@pytest.mark.parametrize("change", ["unbound", "unwritable", "committed"])
def test_one_that_cannot_be_stopped_now_keeps_what_it_has(change: str) -> None:
    sits = seated(rider("a", cores=40), ("n1", 0))
    if change == "unbound":
        sits = replace(sits, bound=frozenset(), unbound={0: "n1"})
    elif change == "unwritable":
        sits = replace(sits, unwritable=WriteTrouble.SLOW)
    else:
        sits = replace(sits, bound=frozenset(), phase=Phase.QUEUED)
    result = cycle(world([seat_node("n1")], [sits, job("first", cores=20)]))
    assert (result.decision.starts, result.decision.stops) == ((), ())
    assert codes(result) == {"team/first": WaitCode.INSUFFICIENT_CPU}


def test_a_grant_waits_for_the_one_who_leaves() -> None:
    wishing = replace(
        running(job("tuned", cores=4), "n1"),
        tunable=True,
        wish=Wish(sequence=1, cores=20, since_s=NOW_S, deadline_s=NOW_S + 60),
    )
    sits = seated(rider("a", cores=40), ("n1", 0))
    result = cycle(world([seat_node("n1")], [wishing, sits]))
    assert result.decision.grants == ()
    assert result.decision.postponed == (wishing.id,)
    assert [stop.job for stop in result.decision.stops] == [sits.id]


AUTO = SharingWish.AUTO


def test_an_auto_job_takes_whole_gpus_first_and_a_seat_after_a_long_wait() -> None:
    whole = running(job("whole", gpus=1), "n1")
    auto = replace(opportunistic(job("auto"), gpu_gib=10, wish=AUTO), queued_s=NOW_S - 299)
    sits = seated(rider("sits"), ("n2", 0))
    full = world([seat_node("n1"), replace(seat_node("n2"), allocatable=seat_node("n2").allocatable)], [auto])
    assert [start.gpus for start in cycle(full).decision.starts] == [()]
    # Foreign pods hold the GPUs of n1; n2 has none that can be had whole, but seats.
    seats_only = replace(
        seat_node("n2"), allocatable=resources(cores=48, memory_gib=99, pods=99, **{"coda.scheduler/gpu-0": 4})
    )
    busy = world([seat_node("n1"), seats_only], [whole, auto, sits])
    result = cycle(busy)
    assert codes(result) == {"team/auto": WaitCode.INSUFFICIENT_GPUS}
    assert result.wake_s == pytest.approx(NOW_S + 1, abs=0.01)
    assert places(cycle(busy, now_s=result.wake_s or 0.0)) == {"team/auto": (("n2", 0),)}
    assert codes(cycle(busy, OFF, now_s=NOW_S + 99)) == {"team/auto": WaitCode.INSUFFICIENT_GPUS}


def test_an_auto_job_with_several_gpus_per_rank_waits_for_whole_ones() -> None:
    auto = opportunistic(job("auto", gpus=2), gpu_gib=10, wish=AUTO)
    assert codes(cycle(world([seat_node("n1")], [auto]))) == {"team/auto": WaitCode.NEVER_FITS}


def test_an_auto_job_that_finds_no_seat_keeps_its_reason() -> None:
    auto = opportunistic(job("auto", cores=1), gpu_gib=10, wish=AUTO)
    whole = running(job("whole", gpus=1), "n1")
    assert codes(cycle(world([seat_node("n1")], [whole, auto]))) == {"team/auto": WaitCode.INSUFFICIENT_GPUS}
