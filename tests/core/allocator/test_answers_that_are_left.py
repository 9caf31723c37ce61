"""When an answer is left, and for what: cores that hold a job up bring it more of them, nothing takes more away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.allocator import CoreSearch, SearchOutcome, SearchResult, Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.core_search import CoreLimits, Leg, begin_search, next_search
from coda.allocator.curve import CurvePoint, WindowReading
from coda.allocator.tuning import TuningInput
from coda.allocator.watch import Watch, watch_over
from coda.allocator.window_samples import WindowResult
from coda.model.job import Wish, WishAnswer

CONFIG = TuningConfig()
HERE = TuningInput(attempt=1, cores=4, gpus=1, most_cores=16)
FREE, FULL = False, True


def answered(level: float = 0.9, cores: int = 4, start: int = 6) -> Tuning:
    curve = (CurvePoint(cores=cores, share=level, variance=1e-6),)
    found = SearchResult(cores=cores, outcome=SearchOutcome.FOUND, curve=curve, start=start)
    watch = watch_over(found, None, 0.0, CONFIG.watch)
    return Tuning(attempt=1, phase=TuningPhase.TUNED, found=found, watch=watch)


def after(tuning: Tuning, *windows: tuple[float, bool], held_up: bool | None = None) -> Tuning:
    for at, (share, throttled) in enumerate(windows):
        reading = WindowReading(share=share, variance=1e-6, throttled=throttled)
        window = WindowResult(reading=reading, held_up=throttled if held_up is None else held_up)
        tuning = next_tuning(tuning, HERE, window, CONFIG, 90.0 * (at + 1))
    return tuning


def test_windows_in_which_its_cores_are_all_used_end_an_answer_that_left_it_some() -> None:
    left = after(answered(), (0.9, FREE), (0.9, FULL), (0.9, FULL), (0.9, FULL))
    assert isinstance(left.found, CoreSearch)
    assert (left.found.leg, left.found.trying) == (Leg.UP, 5)


def test_an_answer_that_used_all_its_cores_from_the_first_is_not_left_for_that() -> None:
    assert after(answered(), *[(0.9, FULL)] * 12).phase is TuningPhase.TUNED


def test_a_search_that_utilisation_began_takes_no_cores_away() -> None:
    left = after(answered(), (0.9, FREE), *[(0.8, FREE)] * 3, held_up=True)
    assert isinstance(left.found, CoreSearch)
    assert (left.found.floor, left.found.leg, left.found.trying) == (4, Leg.UP, 5)


def test_utilisation_that_moved_for_another_reason_than_cores_begins_no_search() -> None:
    stays = after(answered(), (0.9, FREE), *[(0.6, FREE)] * 3, held_up=False)
    assert stays.phase is TuningPhase.TUNED
    assert stays.watch is not None
    assert (stays.watch.level, stays.watch.since_s, stays.watch.away) == (0.6, 0.0, 0)  # tried again when it is due


def test_a_slow_fall_is_not_followed_while_its_cores_are_all_used() -> None:
    falling = [0.9 * 0.99**window for window in range(9)]
    assert after(answered(), *[(share, FULL) for share in falling]).phase is not TuningPhase.TUNED
    assert after(answered(), *[(share, FREE) for share in falling]).phase is TuningPhase.TUNED


def test_a_search_with_a_floor_tries_nothing_below_it() -> None:
    limits = CoreLimits(least=3, most=16)
    search = begin_search(6, 1, limits, floor=5)
    first = next_search(search, WindowReading(share=0.9), CoreLimits(least=5, most=16), CONFIG.tuning)
    assert isinstance(first, CoreSearch)
    assert (first.trying, first.floor) == (5, 5)


@pytest.mark.parametrize(
    ("tight", "used", "expected"),
    [
        pytest.param(True, 4.2, 5, id="it uses more than four could give"),
        pytest.param(True, 3.0, 4, id="it was throttled in another phase"),
        pytest.param(False, 4.2, 4, id="it was not throttled"),
    ],
)
def test_one_core_more_that_ends_throttling_is_kept_though_nothing_is_gained(
    tight: bool, used: float, expected: int
) -> None:
    limits = CoreLimits(least=4, most=16)
    step: CoreSearch | SearchResult = begin_search(4, 1, limits, floor=4)
    while isinstance(step, CoreSearch):
        few = step.trying == 4
        reading = WindowReading(share=0.9, variance=1e-8, throttled=tight and few, used_cores=4.0 if few else used)
        step = next_search(step, reading, limits, CONFIG.tuning)
    assert step.cores == expected


def test_of_counts_that_gain_nothing_the_fewest_that_ends_throttling_is_kept() -> None:
    """Its loading needs 5.6 cores; five gain so little that the next move is longer."""
    limits = CoreLimits(least=4, most=16)
    step: CoreSearch | SearchResult = begin_search(4, 2, limits, floor=4)
    while isinstance(step, CoreSearch):
        cores = step.trying
        share = 0.9 if cores == 4 else 0.904
        reading = WindowReading(share=share, variance=1e-10, throttled=cores < 6, used_cores=min(cores, 5.6))
        step = next_search(step, reading, limits, CONFIG.tuning)
    assert step.cores == 6


@pytest.mark.parametrize(("steady", "expected"), [(True, 5), (False, 4)])
def test_a_start_that_is_measured_twice_is_tight_if_it_was_so_last(steady: bool, expected: int) -> None:
    limits = CoreLimits(least=4, most=16)
    first = WindowReading(share=0.8, variance=1e-8, throttled=True, used_cores=4.0, steady=False)
    second = WindowReading(share=0.8, variance=1e-8, throttled=steady, used_cores=4.0)
    step = next_search(begin_search(4, 1, limits, floor=4), first, limits, CONFIG.tuning)
    assert isinstance(step, CoreSearch)
    step = next_search(step, second, limits, CONFIG.tuning)
    while isinstance(step, CoreSearch):
        step = next_search(step, WindowReading(share=0.8, variance=1e-8, used_cores=4.2), limits, CONFIG.tuning)
    assert step.cores == expected


@pytest.mark.parametrize(("start", "floor", "expected"), [(4, 4, 6), (4, 2, 2), (1, 0, 0), (4, 0, 0)])
def test_a_search_that_begins_again_takes_no_cores_away_if_it_did_not(start: int, floor: int, expected: int) -> None:
    curve = (CurvePoint(cores=start, share=0.5, variance=1e-8),)
    search = begin_search(start, 1, CoreLimits(most=16), floor=floor)
    search = replace(search, leg=Leg.UP, trying=6, odd=True, curve=curve)
    anew = next_search(search, WindowReading(share=0.1, variance=1e-8), CoreLimits(most=16), CONFIG.tuning)
    assert isinstance(anew, CoreSearch)
    assert (anew.leg, anew.start, anew.floor) == (Leg.START, 6, expected)


@pytest.mark.parametrize(
    ("share", "at_s", "tried"),
    [
        pytest.param(0.9, 3600.0, True, id="due"),
        pytest.param(0.6, 3600.0, False, id="something slows it: fewer cores would do for now"),
        pytest.param(0.6, 7200.0, True, id="slow for as long again"),
    ],
)
def test_an_answer_is_not_tried_again_while_something_else_slows_the_job(
    share: float, at_s: float, tried: bool
) -> None:
    watch = answered().watch
    assert watch is not None
    slow = replace(answered(), watch=replace(watch, confirmed=True, level=share, free=True))
    window = WindowResult(reading=WindowReading(share=share, variance=1e-6), held_up=False)
    after_it = next_tuning(slow, HERE, window, CONFIG, at_s)
    assert (after_it.phase is not TuningPhase.TUNED) is tried
    assert after_it.watch is not None
    assert after_it.watch.tries == tried


def test_a_search_that_is_refused_its_first_count_still_takes_no_cores_away() -> None:
    found = begin_search(6, 1, CoreLimits(most=16), floor=5)
    wish = Wish(sequence=1, cores=6, since_s=0.0, deadline_s=60.0)
    no = WishAnswer(sequence=1, granted=False, cores=5, answered_s=1.0, deadline_s=60.0, code="NodeFull")
    wishing = Tuning(attempt=1, phase=TuningPhase.WISHING, found=found, wish=wish)
    here = replace(HERE, cores=5, answer=no)
    refused = next_tuning(wishing, here, None, CONFIG, 1.0)
    assert isinstance(refused.found, CoreSearch)
    assert (refused.found.start, refused.found.floor) == (5, 5)


def test_answers_that_change_in_turn_are_tried_again_less_and_less_often() -> None:
    before = replace(answered().watch or pytest.fail("no watch"), tries=3)
    found = answered(cores=9).found
    assert isinstance(found, SearchResult)
    watch: Watch = watch_over(found, before, 0.0, CONFIG.watch)
    assert (watch.cores, watch.tries) == (9, 3)
