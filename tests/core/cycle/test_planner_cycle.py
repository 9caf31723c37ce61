"""One whole cycle: decision, reviews, what the queue looks like, and when the next cycle is due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, review_snapshot, run_cycle
from coda.history import FinishedRun
from coda.model import Job, PlacementState, Resources, WaitCode, World
from coda.model.constraints import NodeConstraints
from coda.model.job import Wish, WriteTrouble
from coda.model.world import VirtualCluster
from coda.placements import InFlight, PlacementAction
from coda.policy import ArraysConfig, PolicyConfig
from tests.builders import job, node, planned, resources, running, stopping, world

NOW_S = 10.0


def foreign(*nodes: str, gpus: int) -> InFlight:
    return InFlight(uid="foreign", request=resources(gpus=gpus, pods=1), nodes=nodes)


def cycle(of: World, *pods: InFlight, config: PolicyConfig | None = None, now_s: float = NOW_S) -> CycleResult:
    snapshot = CycleSnapshot(world=of, foreign=pods, epoch=1, now_s=now_s)
    return run_cycle(snapshot, config or PolicyConfig(), CycleCache())


def actions(result: CycleResult) -> dict[str, PlacementAction]:
    return {review.job.id: review.action for review in result.reviews}


def test_one_cycle_starts_a_job_reviews_a_placement_and_says_who_waits() -> None:
    committed = planned(job("committed", gpus=8), "n1")
    small, large = job("small", gpus=2), job("large", replicas=2, gpus=8, queued_s=1.0)
    result = cycle(world([node("n1"), node("n2")], [committed, small, large]))
    assert [(start.job, start.nodes) for start in result.decision.starts] == [(small.id, ("n2",))]
    assert actions(result) == {committed.id: PlacementAction.RELEASE}
    assert dict(result.decided_on) == {small.id: small}
    assert (dict(result.jobs_by_code), result.gpus_wanted) == ({WaitCode.INSUFFICIENT_GPUS: 1}, 16)
    assert result.leaves_jobs_waiting
    assert result.wake_s is None


def test_an_autoscaler_is_not_told_of_jobs_that_no_node_would_help() -> None:
    limited = VirtualCluster(name="team", gpus=2, may_borrow=False)
    jobs = [
        replace(job("full", gpus=4), virtual_cluster="team"),
        replace(job("edited", gpus=8), edited=True),
        job("moon", gpus=8, within="moon"),
        job("large", replicas=2, gpus=8),
    ]
    result = cycle(replace(world([node("n1")], jobs), virtual_clusters=(limited,)))
    assert len(result.decision.refusals) == 4
    assert result.gpus_wanted == 16


@pytest.mark.parametrize(
    ("waiting", "code"),
    [
        pytest.param(replace(job("a", gpus=8), unwritable=WriteTrouble.REFUSED), "StatusUnwritable", id="unwritable"),
        pytest.param(job("a", gpus=8, not_before_s=NOW_S + 3600.0), "BackingOff", id="backs off"),
    ],
)
def test_an_autoscaler_is_not_told_of_jobs_that_wait_for_something_else(waiting: Job, code: str) -> None:
    result = cycle(world([node(f"n{number}") for number in range(4)], [waiting]))
    assert [refusal.code.value for refusal in result.decision.refusals] == [code]
    assert result.gpus_wanted == 0


@pytest.mark.parametrize(
    ("trouble", "code"), [(WriteTrouble.SLOW, "StatusWriteSlow"), (WriteTrouble.OVERTAKEN, "ChangedMeanwhile")]
)
def test_a_slow_api_server_does_not_look_like_no_demand(trouble: WriteTrouble, code: str) -> None:
    result = cycle(world([node("n1")], [replace(job("a", gpus=8, replicas=2), unwritable=trouble)]))
    assert [refusal.code.value for refusal in result.decision.refusals] == [code]
    assert (result.gpus_wanted, result.gpus_unmatched) == (16, 0)


def test_an_autoscaler_is_told_apart_of_jobs_for_which_no_present_node_would_do() -> None:
    jobs = [
        job("typo", gpus=8, replicas=8, constraints=NodeConstraints(selector={"gpu-type": "H10O"})),
        job("wide", gpus=16),
        job("large", replicas=2, gpus=8),  # a second node like the first one would do
    ]
    result = cycle(world([node("n1")], jobs))
    codes = {WaitCode.NO_MATCHING_NODE: 1, WaitCode.NEVER_FITS: 2}
    assert (dict(result.jobs_by_code), result.gpus_wanted, result.gpus_unmatched) == (codes, 64 + 16 + 16, 64 + 16)


def test_who_is_stopped_or_answered_is_known_as_the_cycle_saw_it() -> None:
    wishing = replace(
        running(job("wishing", gpus=1), "n1"), wish=Wish(sequence=1, cores=4, since_s=0.0, deadline_s=50.0)
    )
    refused = replace(
        running(job("refused", gpus=1), "n2"), wish=Wish(sequence=1, cores=99, since_s=0.0, deadline_s=50.0)
    )
    result = cycle(world([node("n1"), node("n2")], [wishing, refused]))
    assert dict(result.decided_on) == {wishing.id: wishing, refused.id: refused}
    assert not result.leaves_jobs_waiting


def test_foreign_pods_in_flight_keep_a_placement_from_release_and_a_job_from_its_start() -> None:
    committed, waiting = planned(job("committed", gpus=8), "n1"), job("waiting", gpus=8)
    there = world([node("n1"), node("n2")], [committed, waiting])
    result = cycle(there, foreign("n1", "n2", gpus=1))
    assert actions(result) == {committed.id: PlacementAction.WAIT}
    assert result.decision.starts == ()
    assert result.leaves_jobs_waiting


def test_what_is_held_back_counts_beside_foreign_pods() -> None:
    held_back = {"n1": resources(gpus=4, pods=1)}
    there = world([node("n1")], [planned(job("committed", gpus=2), "n1")], in_flight=held_back)
    alone = CycleSnapshot(world=there, epoch=1, now_s=NOW_S)
    assert [review.action for review in review_snapshot(alone)] == [PlacementAction.RELEASE]
    both = replace(alone, foreign=(foreign("n1", gpus=3),))
    assert [review.action for review in review_snapshot(both)] == [PlacementAction.WAIT]
    assert cycle(there, foreign("n1", gpus=3)).reviews == review_snapshot(both)


@pytest.mark.parametrize("is_ending", [False, True])
def test_nobody_is_stopped_for_want_of_what_is_only_held_back(is_ending: bool) -> None:
    """n1 is full, or its last job is ending; the guest on n3 could go on on n4, and leave n3 to the next job."""
    full = [running(job(f"on-{name}", gpus=gpus), name) for name, gpus in (("n1", 8), ("n2", 8), ("n4", 7))]
    guest, coming = running(job("guest", gpus=1, resumable=True), "n3"), job("next", gpus=8)
    held_back = {"n1": full.pop(0).request} if is_ending else {}
    there = world([node(name) for name in ("n1", "n2", "n3", "n4")], [*full, guest, coming], in_flight=held_back)
    config = PolicyConfig(policy="coda", arrays=ArraysConfig(large_share=0.75))
    assert [stop.job for stop in cycle(there, config=config).decision.stops] == ([] if is_ending else [guest.id])


GANG = job("gang", gpus=8)


@pytest.mark.parametrize(
    ("jobs", "leaving", "wake_s"),
    [
        pytest.param([GANG], {}, None, id="it starts"),
        pytest.param([replace(GANG, not_before_s=30.0)], {}, 30.0, id="it backs off"),
        pytest.param(
            [replace(GANG, not_before_s=NOW_S), running(job("other", gpus=8), "n1")], {}, None, id="no longer"
        ),
        pytest.param(
            [planned(GANG, "n1"), stopping(running(job("leaver", gpus=4), "n1"))],
            {"n1": job("leaver", gpus=4).request},
            60.0,
            id="its placement waits for a stopped job up to its bind deadline",
        ),
    ],
)
def test_wakes_when_time_alone_may_change_the_answer(
    jobs: list[Job], leaving: dict[str, Resources], wake_s: float | None
) -> None:
    assert cycle(world([node("n1")], jobs, leaving=leaving)).wake_s == wake_s


def test_a_wish_that_waits_for_its_turn_wakes_the_cycle_at_its_deadline() -> None:
    leaver = stopping(running(job("leaver", gpus=1, cores=40), "n1"))
    wishing = replace(
        running(job("wishing", gpus=1, cores=4), "n1"), wish=Wish(sequence=1, cores=20, since_s=0.0, deadline_s=50.0)
    )
    result = cycle(world([node("n1")], [leaver, wishing], leaving={"n1": leaver.request}))
    assert result.decision.postponed == (wishing.id,)
    assert (result.wake_s, result.leaves_jobs_waiting) == (50.0, True)


def test_the_cache_changes_no_result() -> None:
    cache, config = CycleCache(), PolicyConfig()
    jobs = [planned(job("committed", gpus=4), "n1"), job("a", gpus=4), job("b", gpus=4, queued_s=1.0)]
    snapshot = CycleSnapshot(world=world([node("n1")], jobs), epoch=1, now_s=NOW_S)
    assert run_cycle(snapshot, config, cache) == run_cycle(snapshot, config, cache)
    assert run_cycle(snapshot, config, cache) == run_cycle(snapshot, config, CycleCache())
    assert snapshot.world.jobs[0].placement is not None
    assert snapshot.world.jobs[0].placement.state is PlacementState.COMMITTED


STREAM = (foreign("n1", "n2", gpus=1),)


def passed_by(of: World, *pods: InFlight, for_s: float = 6.0) -> CycleResult:
    """A cycle after foreign pods were in flight one after the other for so long."""
    snapshot = CycleSnapshot(world=of, foreign=pods, epoch=1, now_s=NOW_S, in_flight_for_s=for_s)
    return run_cycle(snapshot, PolicyConfig(), CycleCache())


def test_a_steady_stream_of_pods_in_flight_does_not_starve_the_head_of_the_queue() -> None:
    head, behind = job("head", replicas=2, gpus=8), job("behind", gpus=8, queued_s=1.0)
    of = world([node("n1"), node("n2")], [head, behind])
    assert passed_by(of, *STREAM, for_s=4.0).decision.starts == ()
    result = passed_by(of, *STREAM)
    assert [start.job for start in result.decision.starts] == [head.id]
    assert [refusal.job for refusal in result.decision.refusals] == [behind.id]
    assert dict(result.decided_on) == {head.id: head}


def test_only_one_job_is_committed_beside_pods_in_flight() -> None:
    first, second = job("first", gpus=8), job("second", gpus=8, queued_s=1.0)
    nodes = [node("n1"), node("n2")]
    assert [start.job for start in passed_by(world(nodes, [first, second]), *STREAM).decision.starts] == [first.id]
    assert passed_by(world(nodes, [planned(first, "n1"), second]), *STREAM).decision.starts == ()


def test_pods_that_can_land_on_one_node_only_are_not_overlooked() -> None:
    of = world([node("n1"), node("n2")], [job("head", gpus=8)])
    result = passed_by(of, foreign("n1", gpus=1), replace(STREAM[0], uid="other"))
    assert [start.nodes for start in result.decision.starts] == [("n2",)]
    full = world([node("n1"), node("n2")], [running(job("runs", gpus=8), "n2"), job("head", gpus=8)])
    assert passed_by(full, foreign("n1", gpus=1)).decision.starts == ()


def test_who_is_committed_beside_pods_in_flight_leaves_alone_what_is_kept_for_a_promised_job() -> None:
    now_s = 1_000_000.0
    ends_soon = running(job("runs", gpus=8), "n1")
    assert ends_soon.placement is not None
    ends_soon = replace(ends_soon, placement=replace(ends_soon.placement, committed_s=now_s - 20_000.0))
    promised = job("promised", replicas=2, gpus=8, queued_s=now_s - 2 * 86_400.0)
    of = world([node("n1"), node("n2")], [ends_soon, promised, job("behind", gpus=8, queued_s=now_s - 60.0)])
    cache = CycleCache()
    for _ in range(20):
        cache.book.run_times.add(FinishedRun("", "", 8, 21_000.0))
    snapshot = CycleSnapshot(world=of, foreign=STREAM, epoch=1, now_s=now_s, in_flight_for_s=6.0)
    config = PolicyConfig(promise_patience_s=86_400.0)
    unknown = run_cycle(snapshot, config, CycleCache())  # as far as this one knows, it would wait too long
    assert [start.job for start in unknown.decision.starts] == ["team/behind"]
    assert run_cycle(snapshot, config, cache).decision.starts == ()
