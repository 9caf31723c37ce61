"""Gangs that wait a while for nodes that are close together."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.errors import InvalidInput
from coda.history.queue_estimates import LEAST_RUNS
from coda.history.run_times import FinishedRun
from coda.model import Decision, Job, WaitCode, World
from coda.model.job import LocalityStep
from coda.nodes.locality import hold_of, locality_from_text
from coda.policy import Level, PolicyConfig
from coda.promises import PromiseBook
from tests.builders import RACK_LABEL, job, rack, running, world
from tests.strategies import worlds

pytestmark = pytest.mark.heavy

RACK_300_S = (LocalityStep("rack", 300.0),)
CONFIG = PolicyConfig()
RACKS = (*rack("a", 2), *rack("b", 2))
HALF_FULL = (running(job("x", gpus=8), "a-0"), running(job("y", gpus=8), "b-0"))
"""Each rack has one free node: two ranks of 8 GPUs fit, but not together."""


def gang(**fields: object) -> Job:
    return replace(job("gang", replicas=2, gpus=8, queued_s=1000.0), prefers=RACK_300_S, **fields)  # type: ignore[arg-type]


def decided(of: Job, now_s: float, config: PolicyConfig = CONFIG, *others: Job) -> Decision:
    return decide(world(RACKS, [*(others or HALF_FULL), of]), config, now_s)


def test_it_waits_for_one_rack_and_says_until_when_and_at_which_price() -> None:
    decision = decided(gang(), 1000.0)
    assert not decision.starts
    assert decision.wake_s == 1300.0
    (refusal,) = decision.refusals
    assert refusal.code is WaitCode.WAITS_FOR_LOCALITY
    assert refusal.message.endswith(
        "enough is free in all, but no rack can hold more than 1 of them now; it prefers one rack until "
        "1970-01-01 00:21 UTC, as it would run about 15 % slower apart"
    )


def test_it_starts_apart_from_that_moment_on() -> None:
    assert not decided(gang(), 1299.9).starts
    assert decided(gang(), 1300.0).starts[0].nodes == ("a-1", "b-1")


def test_it_starts_at_once_where_one_rack_holds_it() -> None:
    (start,) = decided(gang(), 1000.0, CONFIG, HALF_FULL[0]).starts
    assert start.nodes == ("b-0", "b-1")


def test_it_holds_nothing_while_it_waits() -> None:
    later = job("later", gpus=8, queued_s=1001.0)
    decision = decide(world(RACKS, [*HALF_FULL, gang(), later]), CONFIG, 1001.0)
    assert [start.job for start in decision.starts] == ["team/later"]


CODA = PolicyConfig(policy="coda")
WIDE = replace(job("gang", replicas=2, gpus=8, cores=30, queued_s=1000.0), prefers=RACK_300_S)


def borrower(name: str, where: str) -> Job:
    placed = running(job(name, gpus=0, cores=44), where)
    assert placed.placement is not None
    return replace(placed, placement=replace(placed.placement, borrows=True))


def test_nobody_is_stopped_for_a_preference() -> None:
    borrowers = (borrower("c", "a-0"), borrower("d", "b-0"))
    assert not decided(WIDE, 1299.0, CODA, *borrowers).stops
    assert decided(WIDE, 1300.0, CODA, *borrowers).starts[0].nodes == ("a-1", "b-1")


def test_borrowers_go_in_one_rack_where_nothing_is_free_apart() -> None:
    borrowers = (borrower("c", "a-0"), borrower("d", "b-0"), borrower("e", "b-1"))
    assert {stop.job for stop in decided(WIDE, 1000.0, CODA, *borrowers).stops} == {"team/c"}


def test_it_does_not_wait_for_a_rack_that_could_never_hold_it() -> None:
    large = replace(job("gang", replicas=3, gpus=8, queued_s=1000.0), prefers=RACK_300_S)
    assert decided(large, 1000.0, CONFIG, HALF_FULL[0]).starts


def test_what_is_short_anyway_is_no_wait_for_locality() -> None:
    full = (*HALF_FULL, running(job("z", gpus=1), "a-1"))
    (refusal,) = decided(gang(), 1000.0, CONFIG, *full).refusals
    assert refusal.code is WaitCode.INSUFFICIENT_GPUS


def test_a_level_narrower_than_each_nodes_comes_first() -> None:
    steps = (LocalityStep("node", 60.0), LocalityStep("rack", 300.0))
    small = replace(job("gang", replicas=2, gpus=4, queued_s=1000.0), prefers=steps)
    others = (*(running(job(name, gpus=4), name) for name in ("a-0", "a-1")), running(job("b", gpus=8), "b-0"))
    others = (*others, running(job("c", gpus=4), "b-1"))
    assert not decided(small, 1059.0, CONFIG, *others).starts
    assert decided(small, 1060.0, CONFIG, *others).starts[0].nodes == ("a-0", "a-1")


def test_what_the_installation_prefers_counts_for_gangs_that_say_nothing() -> None:
    config = PolicyConfig(locality=RACK_300_S)
    silent = replace(gang(), prefers=())
    assert not decided(silent, 1299.0, config).starts
    assert decided(silent, 1300.0, config).starts
    brief = replace(gang(), prefers=(LocalityStep("rack", 10.0),))
    assert decided(brief, 1010.0, config).starts


def test_a_required_level_stays_required() -> None:
    needs_rack = gang(within="rack")
    (refusal,) = decided(needs_rack, 9000.0).refusals
    assert refusal.code is WaitCode.NO_DOMAIN_FITS


def test_racks_that_are_not_within_the_required_level_are_not_waited_for() -> None:
    """The nodes have no zone: whoever is held to a rack could start outside the zone that it requires."""
    config = PolicyConfig(levels=(Level("zone", "zone"), Level("rack", RACK_LABEL)))
    needs_zone = gang(within="zone")
    assert not decided(needs_zone, 1000.0, config, HALF_FULL[0]).starts
    zoned = [replace(node, labels={**node.labels, "zone": "z"}) for node in RACKS]
    (start,) = decide(world(zoned, [HALF_FULL[0], needs_zone]), config, 1000.0).starts
    assert start.nodes == ("b-0", "b-1")


def test_no_gang_waits_longer_than_closeness_can_save_it() -> None:
    book = PromiseBook()
    for _ in range(50):
        book.run_times.add(FinishedRun("team", "", 16, 600.0))
    now_s = 1000.0 + 0.15 * 600.0
    waiting = world(RACKS, [*HALF_FULL, replace(gang(), user="team")])
    assert not decide(waiting, PolicyConfig(), now_s - 1.0, book=book).starts
    assert decide(waiting, PolicyConfig(), now_s, book=book).starts


@pytest.mark.parametrize(("finished", "starts"), [(LEAST_RUNS - 1, False), (LEAST_RUNS, True)])
def test_a_few_smoke_tests_do_not_end_the_wait(finished: int, starts: bool) -> None:
    book = PromiseBook()
    for _ in range(finished):
        book.run_times.add(FinishedRun("team", "", 16, 2.0))
    waiting = world(RACKS, [*HALF_FULL, replace(gang(), user="team")])
    assert bool(decide(waiting, PolicyConfig(), 1010.0, book=book).starts) is starts


@given(worlds(preferring=True), st.lists(st.floats(0.0, 120.0), min_size=1, max_size=6))
def test_a_cycle_with_a_cache_decides_as_one_without_while_levels_relax(before: World, passed_s: list[float]) -> None:
    config, cache, now_s = PolicyConfig(locality=(LocalityStep("rack", 101.0),)), PlannerCache(), 90.0
    for seconds in passed_s:
        now_s += seconds
        assert decide(before, config, now_s, cache) == decide(before, config, now_s)


@given(worlds(preferring=True))
def test_a_gang_that_has_waited_long_enough_is_treated_as_one_that_prefers_nothing(before: World) -> None:
    without = replace(before, jobs=tuple(replace(job, prefers=()) for job in before.jobs))
    assert decide(before, PolicyConfig(), 1000.0) == decide(without, PolicyConfig(), 1000.0)


@given(st.lists(st.floats(1.0, 500.0), max_size=3), st.floats(0.0, 4000.0), st.floats(0.0, 5000.0))
def test_a_hold_ends_by_the_sum_of_its_steps_and_by_what_it_is_worth(
    lasts_s: list[float], expected_s: float, waited_s: float
) -> None:
    prefers = tuple(LocalityStep("rack", for_s) for for_s in lasts_s)
    worth_s = 0.15 * expected_s if expected_s else inf
    hold = hold_of(replace(gang(), prefers=prefers), 0.0, expected_s, PolicyConfig(), waited_s, lambda level: True)
    assert (hold.until_s is None) == (waited_s >= min(sum(lasts_s), worth_s))
    assert hold.until_s is None or waited_s < hold.until_s <= min(sum(lasts_s), worth_s)


@pytest.mark.parametrize("text", ["rack", "rack=soon", "rack=", "=5=6"])
def test_steps_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidInput, match="write locality as level=seconds, separated by commas, not"):
        locality_from_text(text)


@pytest.mark.parametrize(("text", "sentence"), [("moon=5", "must name topology levels"), ("rack=0", "above 0 s")])
def test_steps_that_make_no_sense(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        PolicyConfig(locality=locality_from_text(text))


def test_steps_as_people_write_them() -> None:
    assert locality_from_text(" node=60, rack=inf,") == (LocalityStep("node", 60.0), LocalityStep("rack", inf))
