"""CPUs that work while GPUs idle: fewer cores make such pauses longer, which no utilisation shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.allocator import CoreSearch, SearchOutcome, SearchResult, Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.core_search import CoreLimits, Leg, begin_search
from coda.allocator.curve import CurvePoint, WindowReading
from coda.allocator.pauses import ALLOWED_LOSS, CpuPauses, pause_core_s
from coda.allocator.tuning import TuningInput
from coda.allocator.watch import watch_over
from coda.allocator.window_samples import Look, WindowResult, result_of_window
from coda.errors import InvalidInput
from coda.model.job import TAKEN_BACK, WishAnswer

CONFIG = TuningConfig()
NOW_S = 10_000.0


def paused(core_s: float, *, since_s: float = 0.0) -> CpuPauses:
    return CpuPauses(cores=8, since_s=since_s, core_s=core_s)


@pytest.mark.parametrize("core_s", [100.0, 1000.0, 5000.0, 20_000.0])
@pytest.mark.parametrize("hours", [0.5, 2, 10])
def test_pauses_grow_by_no_more_than_is_allowed_and_one_core_less_would_be_too_few(core_s: float, hours: float) -> None:
    now_s = hours * 3600
    least = paused(core_s).least_cores(now_s)

    def grows(cores: int) -> float:
        return core_s * (1 / cores - 1 / 8) / now_s

    assert grows(least) <= ALLOWED_LOSS + 1e-9
    assert least == 1 or grows(least - 1) > ALLOWED_LOSS


def test_the_first_minutes_are_no_rhythm() -> None:
    assert paused(300, since_s=NOW_S - 60).least_cores(NOW_S) == paused(300, since_s=NOW_S - 900).least_cores(NOW_S) < 8


def test_pauses_at_all_the_cores_that_it_began_with_say_nothing_of_fewer() -> None:
    assert paused(0).with_more(500, 8, NOW_S).core_s == 0
    assert paused(0).with_more(500, 9, NOW_S).core_s == 0
    assert paused(0).with_more(500, 7, NOW_S).core_s == 500


@pytest.mark.parametrize("broken", [{"cores": 0}, {"core_s": -1.0}, {"core_s": float("inf")}])
def test_refuses_what_no_pauses_can_be(broken: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        replace(paused(0), **broken)  # type: ignore[arg-type]


def looks(share_at: dict[range, float], *, used: float, full: bool | None) -> list[Look]:
    levels = {second: share for seconds, share in share_at.items() for second in seconds}
    return [Look(float(at_s), levels.get(at_s, 0.9), full, used) for at_s in range(1, 91)]


@pytest.mark.parametrize(
    ("share_at", "full", "core_s"),
    [
        pytest.param({range(1, 91): 0.0}, True, 360, id="idle all the time, its cores full"),
        pytest.param({range(1, 91): 0.0}, False, 0, id="idle, and its cores too"),
        pytest.param({range(1, 91): 0.0}, None, 0, id="idle, and nobody knows of its cores"),
        pytest.param({range(20, 60): 0.1}, True, 160, id="a pause of forty seconds"),
        pytest.param({range(20, 40): 0.1, range(60, 80): 0.1}, True, 0, id="the rhythm of its loading is no pause"),
        pytest.param({}, True, 0, id="it trains"),
    ],
)
def test_counts_what_its_cores_held_up_while_its_gpus_paused(
    share_at: dict[range, float], full: bool | None, core_s: float
) -> None:
    found = result_of_window(looks(share_at, used=4.0, full=full), CONFIG.tuning, changed=False)
    assert found.pause_core_s == pytest.approx(core_s)


@pytest.mark.parametrize(
    ("share", "held_up", "core_s"),
    [(0.3, True, 360), (0.3, False, 0), (0.3, None, 0), (0.7, True, 0)],
)
def test_a_window_far_below_what_the_job_shows_is_a_pause_if_its_cores_held_it_up(
    share: float, held_up: bool | None, core_s: float
) -> None:
    window = WindowResult(reading=WindowReading(share=share), held_up=held_up)
    assert pause_core_s(window, 0.9, 4, CONFIG.tuning) == core_s


def tuned(cores: int, *, began: int) -> Tuning:
    answer = SearchResult(
        cores=cores, outcome=SearchOutcome.FOUND, curve=(CurvePoint(cores=cores, share=0.9),), start=began
    )
    return Tuning(
        attempt=1,
        phase=TuningPhase.TUNED,
        found=answer,
        watch=watch_over(answer, None, 0.0, CONFIG.watch),
        pauses=CpuPauses(cores=began, since_s=0.0),
    )


ROLLING_OUT = WindowResult(reading=WindowReading(share=0.0), pause_core_s=360.0)
HERE = TuningInput(attempt=1, cores=4, gpus=1, most_cores=16)


@pytest.mark.parametrize("knows", [True, False])
def test_a_job_gets_back_the_cores_that_its_rollouts_need(knows: bool) -> None:
    before = tuned(4, began=8)
    before = before if knows else replace(before, pauses=None)  # of an agent before it counted pauses
    after = next_tuning(before, HERE, ROLLING_OUT, CONFIG, 1800.0)
    assert after.phase is TuningPhase.WISHING
    assert after.wish is not None
    assert after.pauses is not None
    assert 4 < after.wish.cores == after.pauses.least_cores(1800.0) <= 8
    assert isinstance(after.found, SearchResult)
    assert (after.found.cores, after.found.outcome) == (after.wish.cores, SearchOutcome.FOUND)


@pytest.mark.parametrize(("leg", "goes_on"), [(Leg.START, True), (Leg.DOWN, False), (Leg.NARROW, False)])
def test_a_search_that_takes_too_many_cores_for_the_pauses_ends_or_begins_with_enough(leg: Leg, goes_on: bool) -> None:
    curve = (CurvePoint(cores=5, share=0.9),)
    search = replace(begin_search(8, 1, CoreLimits(most=16)), leg=leg, trying=4, kept=5, curve=curve)
    before = replace(tuned(4, began=8), phase=TuningPhase.MEASURING, found=search)
    after = next_tuning(before, HERE, ROLLING_OUT, CONFIG, 1800.0)
    assert isinstance(after.found, CoreSearch) is goes_on
    assert after.wish is not None
    assert 4 < after.wish.cores <= 8


def test_a_job_whose_wish_for_its_pauses_is_denied_keeps_its_answer_and_asks_on() -> None:
    asked = next_tuning(tuned(4, began=8), HERE, ROLLING_OUT, CONFIG, 1800.0)
    assert asked.wish is not None
    no = WishAnswer(
        sequence=asked.wish.sequence, granted=False, cores=4, answered_s=1801.0, deadline_s=1860.0, code="NodeFull"
    )
    denied = next_tuning(asked, replace(HERE, answer=no), None, CONFIG, 1801.0)
    assert denied.phase is TuningPhase.TUNED
    again = next_tuning(denied, replace(HERE, answer=no), None, CONFIG, 1800.0 + CONFIG.wish_again_s)
    assert again.wish is not None
    assert (again.phase, again.wish.cores) == (TuningPhase.WISHING, asked.wish.cores)


def test_what_its_pauses_need_is_the_least_that_a_search_tries() -> None:
    curve = (CurvePoint(cores=8, share=0.9),)
    search = replace(begin_search(8, 1, CoreLimits(most=16)), leg=Leg.DOWN, trying=7, kept=8, moves=3, curve=curve)
    before = replace(tuned(7, began=8), phase=TuningPhase.MEASURING, found=search, pauses=paused(6300))
    after = next_tuning(
        before, replace(HERE, cores=7), WindowResult(reading=WindowReading(share=0.9)), CONFIG, 36_000.0
    )
    assert after.wish is not None
    assert after.wish.cores == paused(6300).least_cores(36_000.0) == 6


def test_windows_with_fewer_cores_than_the_answer_are_starved_and_no_pauses() -> None:
    """Somebody took its cores back: that it is slow says nothing of pauses."""
    answer = next_tuning(
        replace(tuned(6, began=8), wish=None),
        HERE,
        WindowResult(reading=WindowReading(share=0.3), held_up=True),
        CONFIG,
        1800.0,
    )
    assert answer.pauses is not None
    assert answer.pauses.core_s == 0


def test_cores_that_were_taken_back_are_asked_for_only_later() -> None:
    taken = WishAnswer(sequence=1, granted=True, cores=4, answered_s=1800.0, deadline_s=1860.0, code=TAKEN_BACK)
    here = replace(HERE, answer=taken)
    at_once = next_tuning(tuned(4, began=8), here, ROLLING_OUT, CONFIG, 1801.0)
    assert at_once.phase is TuningPhase.TUNED
    later = next_tuning(at_once, here, ROLLING_OUT, CONFIG, 1800.0 + CONFIG.wish_again_s)
    assert later.phase is TuningPhase.WISHING


@pytest.mark.parametrize("phase", [TuningPhase.STOPPED, TuningPhase.ADVISING])
def test_a_job_that_is_not_tuned_any_more_asks_for_no_cores(phase: TuningPhase) -> None:
    search = replace(begin_search(4, 1, CoreLimits(most=16)), curve=(CurvePoint(cores=4, share=0.9),))
    before = replace(tuned(4, began=8), phase=phase, found=search, watch=None)
    assert next_tuning(before, HERE, ROLLING_OUT, CONFIG, 1800.0) == before


def test_it_asks_again_only_after_a_while() -> None:
    asked = next_tuning(tuned(4, began=8), HERE, ROLLING_OUT, CONFIG, 1800.0)
    search = begin_search(4, 1, CoreLimits(most=16))
    refused = replace(asked, phase=TuningPhase.MEASURING, found=search)  # it begins with what it has
    soon = next_tuning(refused, HERE, ROLLING_OUT, CONFIG, 1800.0 + CONFIG.wish_again_s - 1)
    assert (soon.phase, soon.pauses and soon.pauses.core_s) == (TuningPhase.MEASURING, 720.0)
    assert next_tuning(soon, HERE, ROLLING_OUT, CONFIG, 1800.0 + CONFIG.wish_again_s).phase is TuningPhase.WISHING


def test_what_is_asked_for_is_no_more_than_its_node_has() -> None:
    after = next_tuning(tuned(4, began=8), replace(HERE, most_cores=5), ROLLING_OUT, CONFIG, 1800.0)
    assert after.wish is not None
    assert after.wish.cores == 5


def test_a_search_that_fell_silent_begins_again_with_the_cores_that_the_attempt_began_with() -> None:
    found = SearchResult(cores=4, outcome=SearchOutcome.UNMEASURABLE, curve=(CurvePoint(cores=4, share=0.9),), start=6)
    silent = replace(tuned(4, began=8), phase=TuningPhase.STOPPED, found=found, watch=None)
    after = next_tuning(silent, HERE, WindowResult(reading=WindowReading(share=0.9)), CONFIG, 1800.0)
    assert after.wish is not None
    assert after.wish.cores == 8


@pytest.mark.parametrize(("usual", "asks"), [(1, False), (4, True)])
def test_a_job_that_begins_with_what_a_short_one_taught_gets_what_its_rollouts_need(usual: int, asks: bool) -> None:
    taught = replace(HERE, cores=1, usual=usual)
    begun = next_tuning(None, taught, None, CONFIG, 0.0)
    assert begun.pauses is not None
    assert begun.pauses.cores == usual
    after = next_tuning(begun, taught, ROLLING_OUT, CONFIG, 1800.0)
    assert (after.phase is TuningPhase.WISHING) is asks
