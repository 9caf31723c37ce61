"""A tuning meets the world: wishes, grants, resizes, refusals and restarts, one step at a time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.allocator import CoreSearch, SearchOutcome, SearchResult, Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.advice import words_of
from coda.allocator.core_search import abandon
from coda.allocator.curve import CurvePoint, WindowReading
from coda.allocator.resize import STATIC_CPU_MANAGER, Obstacle, Resize, ResizeState
from coda.allocator.tuning import TuningInput, stopped
from coda.allocator.watch import watch_over
from coda.allocator.window_samples import WindowResult
from coda.model.job import WishAnswer

CONFIG = TuningConfig()
NOW_S = 1000.0
HERE = TuningInput(attempt=1, cores=3, gpus=1, most_cores=16)


def measured(share: float) -> WindowResult:
    return WindowResult(reading=WindowReading(share=share))


def granted(tuning: Tuning) -> WishAnswer:
    assert tuning.wish is not None
    wish = tuning.wish
    return WishAnswer(sequence=wish.sequence, granted=True, cores=wish.cores, answered_s=NOW_S, deadline_s=NOW_S + 30)


def denied(tuning: Tuning, most: int) -> WishAnswer:
    return replace(granted(tuning), granted=False, cores=most, code="NodeFull", message="the node is full")


def resized(tuning: Tuning, state: ResizeState = ResizeState.DONE, reason: str = "") -> Resize:
    assert tuning.wish is not None
    cores = tuning.wish.cores
    return Resize(
        attempt=1, sequence=tuning.wish.sequence, state=state, wanted=cores, cores=cores, since_s=NOW_S, reason=reason
    )


def begun() -> Tuning:
    return next_tuning(None, HERE, None, CONFIG, NOW_S)


def wishing() -> Tuning:
    return next_tuning(begun(), HERE, measured(0.5), CONFIG, NOW_S)


def test_a_search_begins_at_the_cores_the_job_has() -> None:
    tuning = begun()
    assert tuning.phase is TuningPhase.MEASURING
    assert isinstance(tuning.found, CoreSearch)
    assert tuning.found.trying == 3


def test_nothing_follows_before_the_window_is_over() -> None:
    assert next_tuning(begun(), HERE, None, CONFIG, NOW_S + 50) == begun()


@pytest.mark.parametrize(("least", "wish"), [(1, (1, 2)), (3, (1, 4))], ids=["fewer", "more, where fewer free none"])
def test_a_window_leads_to_a_wish(least: int, wish: tuple[int, int]) -> None:
    tuning = next_tuning(begun(), replace(HERE, least=least), measured(0.5), CONFIG, NOW_S)
    assert (tuning.phase, tuning.wish and (tuning.wish.sequence, tuning.wish.cores)) == (TuningPhase.WISHING, wish)


def test_a_grant_alone_is_not_enough_to_measure() -> None:
    tuning = wishing()
    assert next_tuning(tuning, replace(HERE, answer=granted(tuning)), None, CONFIG, NOW_S + 1) == tuning


def test_once_every_rank_has_the_cores_the_next_window_counts() -> None:
    tuning = wishing()
    there = replace(HERE, cores=2, answer=granted(tuning), resize=resized(tuning))
    after = next_tuning(tuning, there, None, CONFIG, NOW_S + 3)
    assert after.phase is TuningPhase.MEASURING
    assert after.found == tuning.found


def test_the_answer_to_an_older_wish_is_no_answer() -> None:
    tuning = wishing()
    old = replace(granted(tuning), sequence=tuning.wish.sequence - 1 if tuning.wish else 0)
    assert next_tuning(tuning, replace(HERE, answer=old), None, CONFIG, NOW_S + 1) == tuning


def test_a_wish_nobody_answers_is_made_once_more_and_then_refused() -> None:
    tuning = wishing()
    assert tuning.wish is not None
    late_s = NOW_S + CONFIG.wish_deadline_s
    again = next_tuning(tuning, HERE, None, CONFIG, late_s)
    assert (again.phase, again.found, again.reason) == (TuningPhase.WISHING, tuning.found, "NoAnswer")
    assert again.wish == replace(tuning.wish, sequence=2, since_s=late_s, deadline_s=late_s + CONFIG.wish_deadline_s)
    after = next_tuning(again, HERE, None, CONFIG, again.wish.deadline_s)
    assert isinstance(after.found, SearchResult)
    assert (after.phase, after.found.outcome, after.found.cores) == (TuningPhase.TUNED, SearchOutcome.REFUSED, 3)


@pytest.mark.parametrize("who", ["planner", "operator"])
def test_who_was_away_until_the_deadline_refuses_nothing(who: str) -> None:
    tuning = wishing()
    if who == "planner":
        there = replace(HERE, answer=replace(denied(tuning, most=3), code="Expired"))
    else:
        there = replace(HERE, answer=granted(tuning), resize=resized(tuning, ResizeState.REFUSED, "NoAnswer"))
    again = next_tuning(tuning, there, None, CONFIG, NOW_S)
    assert (again.phase, again.found, again.wish and again.wish.sequence) == (TuningPhase.WISHING, tuning.found, 2)
    lower = replace(HERE, cores=2, answer=granted(again), resize=resized(again))
    after = next_tuning(again, lower, None, CONFIG, NOW_S)
    assert (after.phase, after.found, after.reason) == (TuningPhase.MEASURING, tuning.found, "")


def climbing() -> tuple[Tuning, TuningInput]:
    """Fewer cores were worse, more are wished for."""
    tuning = wishing()
    lower = replace(HERE, cores=2, answer=granted(tuning), resize=resized(tuning))
    tuning = next_tuning(next_tuning(tuning, lower, None, CONFIG, NOW_S), lower, measured(0.3), CONFIG, NOW_S)
    assert tuning.wish is not None
    assert tuning.wish.cores == 4
    return tuning, lower


def test_denied_growth_ends_with_the_most_that_can_be_had() -> None:
    tuning, lower = climbing()
    after = next_tuning(tuning, replace(lower, answer=denied(tuning, most=3)), None, CONFIG, NOW_S)
    assert (after.phase, after.wish and after.wish.cores) == (TuningPhase.WISHING, 3)
    back = replace(lower, cores=3, answer=granted(after), resize=resized(after))
    done = next_tuning(after, back, None, CONFIG, NOW_S)
    assert (done.phase, isinstance(done.found, SearchResult) and done.found.cores) == (TuningPhase.TUNED, 3)


def test_growth_that_was_taken_back_counts_as_refused() -> None:
    tuning, lower = climbing()
    back = replace(resized(tuning, ResizeState.REFUSED, "Deadline"), cores=2)
    after = next_tuning(tuning, replace(lower, answer=granted(tuning), resize=back), None, CONFIG, NOW_S)
    assert (after.phase, after.wish and after.wish.cores) == (TuningPhase.WISHING, 3)


def window(share: float, held_up: bool | None) -> WindowResult:
    return WindowResult(reading=WindowReading(share=share), held_up=held_up)


STATIC = "they cannot be changed here: its node gives it whole cores permanently (static CPU manager)"


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        pytest.param(
            window(0.62, True),
            f"GPUs idle 38%, and it uses all its cores: more would help, but {STATIC}",
            id="who uses all cores needs more",
        ),
        pytest.param(
            window(0.62, False),
            f"GPUs idle 38%, but its cores do not hold it up; {STATIC}",
            id="who leaves some does not",
        ),
        pytest.param(window(1.0, True), f"GPUs idle 0%: more cores would not help; {STATIC}", id="busy GPUs need none"),
        pytest.param(
            window(0.62, None),
            "GPUs idle 38%: whether more cores would help is unknown, since its CPU use is; they cannot be changed: "
            "its node gives it whole cores permanently (static CPU manager)",
            id="nobody knows",
        ),
    ],
)
def test_where_the_pod_says_that_cores_cannot_be_changed_one_window_is_measured_for_advice(
    measured: WindowResult, message: str
) -> None:
    fixed = replace(HERE, never=STATIC_CPU_MANAGER)
    after = next_tuning(begun(), fixed, measured, CONFIG, NOW_S)
    assert (after.phase, after.reason, after.message) == (TuningPhase.ADVISING, "StaticCPUManager", message)
    assert after.wish is None


@pytest.mark.parametrize("reason", ["Infeasible", "RestartContainer", "BestEffort", "ResizeUnsupported"])
def test_where_only_a_resize_shows_that_cores_cannot_be_changed_one_window_more_is_measured(reason: str) -> None:
    tuning = wishing()
    never = replace(resized(tuning, ResizeState.REFUSED, reason), cores=3, message="never")
    there = replace(HERE, answer=granted(tuning), resize=never)
    again = next_tuning(tuning, there, None, CONFIG, NOW_S)
    assert (again.phase, again.reason) == (TuningPhase.MEASURING, reason)
    after = next_tuning(again, there, window(0.5, True), CONFIG, NOW_S)
    assert (after.phase, after.reason) == (TuningPhase.ADVISING, reason)
    assert after.message == (
        "GPUs idle 50%, and it uses all its cores: more would help, but they cannot be changed here: never"
    )
    assert next_tuning(after, there, window(0.5, True), CONFIG, NOW_S + 3600) == after


@pytest.mark.parametrize("obstacle", Obstacle)
def test_every_obstacle_has_words(obstacle: Obstacle) -> None:
    assert words_of(obstacle.value)


def test_a_new_attempt_begins_anew_and_an_old_window_says_nothing_of_it() -> None:
    after = next_tuning(wishing(), replace(HERE, attempt=2), measured(0.9), CONFIG, NOW_S)
    assert (after.attempt, after.phase, after.wish) == (2, TuningPhase.MEASURING, None)


def test_cores_that_somebody_else_changed_are_wished_back() -> None:
    after = next_tuning(begun(), replace(HERE, cores=5), measured(0.9), CONFIG, NOW_S)
    assert (after.phase, after.wish and after.wish.cores) == (TuningPhase.WISHING, 3)


@pytest.mark.parametrize(
    ("reading", "reason", "what"),
    [
        pytest.param(None, "TooFewSamples", "its GPUs could be looked at fewer than 10 times", id="too few samples"),
        pytest.param(WindowReading(share=0.001), "Idle", "its GPUs were idle", id="idle"),
    ],
)
def test_windows_that_say_nothing_are_repeated_and_say_why_until_they_end_the_search(
    reading: WindowReading | None, reason: str, what: str
) -> None:
    tuning = next_tuning(begun(), HERE, WindowResult(reading=reading), CONFIG, NOW_S)
    assert (tuning.phase, tuning.reason) == (TuningPhase.MEASURING, reason)
    assert tuning.message == f"{what} in the last window: it is measured again"
    for _ in range(CONFIG.tuning.loading_windows):
        tuning = next_tuning(tuning, HERE, WindowResult(reading=reading), CONFIG, NOW_S)
    assert (tuning.phase, tuning.reason) == (TuningPhase.STOPPED, "Unmeasurable")
    assert tuning.message == f"{what} in 41 windows one after the other"


def test_a_window_within_a_pause_is_repeated_and_says_so() -> None:
    tuning = next_tuning(begun(), HERE, WindowResult(reading=None, paused=True), CONFIG, NOW_S)
    assert (tuning.phase, tuning.reason) == (TuningPhase.MEASURING, "Paused")
    assert tuning.message == "it paused for more than half of the time in the last window: it is measured again"


def test_a_window_that_says_something_ends_the_complaint() -> None:
    silent = next_tuning(begun(), HERE, WindowResult(reading=None), CONFIG, NOW_S)
    assert next_tuning(silent, HERE, measured(0.5), CONFIG, NOW_S).message == ""


def test_a_job_that_falls_silent_gets_back_what_was_best_and_says_why_it_is_tuned_no_more() -> None:
    tuning = wishing()
    lower = replace(HERE, cores=2, answer=granted(tuning), resize=resized(tuning))
    tuning = next_tuning(tuning, lower, None, CONFIG, NOW_S)
    for _ in range(CONFIG.tuning.silent_windows + 1):
        tuning = next_tuning(tuning, lower, WindowResult(reading=None), CONFIG, NOW_S)
    assert (tuning.phase, tuning.wish and tuning.wish.cores) == (TuningPhase.WISHING, 3)
    back = replace(HERE, answer=granted(tuning), resize=resized(tuning))
    tuning = next_tuning(tuning, back, None, CONFIG, NOW_S)
    assert (tuning.phase, tuning.reason) == (TuningPhase.STOPPED, "Unmeasurable")
    assert tuning.message == "its GPUs could be looked at fewer than 10 times in 4 windows one after the other"


def test_what_was_found_and_taken_by_others_meanwhile_is_wished_for_again() -> None:
    tuning, lower = climbing()
    back = next_tuning(tuning, replace(lower, answer=denied(tuning, most=3)), None, CONFIG, NOW_S)
    kept = next_tuning(back, replace(lower, answer=denied(back, most=2)), None, CONFIG, NOW_S)
    assert (kept.phase, kept.message) == (
        TuningPhase.TUNED,
        "3 cores per rank would do, but it keeps 2: the node is full",
    )
    assert next_tuning(kept, lower, None, CONFIG, NOW_S + 1) == kept
    again = next_tuning(kept, lower, None, CONFIG, NOW_S + CONFIG.wish_again_s)
    assert (again.phase, again.wish and again.wish.cores) == (TuningPhase.WISHING, 3)


def test_what_was_found_survives_a_stop() -> None:
    after = stopped(wishing(), 1, "GpuLost", "the GPU is lost")
    assert (after.phase, after.found) == (TuningPhase.STOPPED, wishing().found)


@given(
    optimum=st.integers(1, 14),
    start=st.integers(1, 16),
    stingy=st.integers(0, 16),
)
def test_every_tuning_ends_and_its_wishes_are_numbered_on(optimum: int, start: int, stingy: int) -> None:
    """Against a planner that grants up to `stingy` cores (or what the job has) and a rising curve with a plateau."""
    standing = TuningInput(attempt=1, cores=start, gpus=1, most_cores=16)
    tuning = next_tuning(None, standing, None, CONFIG, NOW_S)
    seen = 0
    for _ in range(100):
        if tuning.phase is TuningPhase.MEASURING:
            share = float(Fraction(min(standing.cores, optimum), optimum))
            tuning = next_tuning(tuning, standing, measured(share), CONFIG, NOW_S)
        elif tuning.phase is TuningPhase.WISHING:
            assert tuning.wish is not None
            assert tuning.wish.sequence == seen + 1
            seen += 1
            most = max(stingy, standing.cores)
            if tuning.wish.cores <= most:
                resize = resized(tuning)
                standing = replace(standing, cores=tuning.wish.cores, answer=granted(tuning), resize=resize)
            else:
                standing = replace(standing, answer=denied(tuning, most))
            tuning = next_tuning(tuning, standing, None, CONFIG, NOW_S)
        else:
            break
    assert tuning.phase is TuningPhase.TUNED
    assert isinstance(tuning.found, SearchResult)
    assert standing.cores <= tuning.found.cores
    if stingy >= 16:
        assert standing.cores == tuning.found.cores == optimum


def test_a_tuning_that_begins_anew_is_numbered_on_from_the_last_answer() -> None:
    """Lost or unreadable in the middle of an attempt: a number that was answered already is answered no more."""
    first = wishing()
    here = replace(HERE, answer=replace(granted(first), sequence=5))
    anew = next_tuning(next_tuning(None, here, None, CONFIG, NOW_S), here, measured(0.5), CONFIG, NOW_S)
    assert anew.wish is not None
    assert anew.wish.sequence == 6


def found(level: float = 0.9, cores: int = 3, start: int = 3, variance: float = 1e-5) -> Tuning:
    """A tuned job, found a moment ago."""
    curve = (CurvePoint(cores=cores, share=level, variance=variance),)
    answer = SearchResult(cores=cores, outcome=SearchOutcome.FOUND, curve=curve, start=start)
    watch = watch_over(answer, None, NOW_S, CONFIG.watch)
    return Tuning(attempt=1, phase=TuningPhase.TUNED, found=answer, watch=watch)


def watched(tuning: Tuning, *shares: float, at_s: float = NOW_S) -> Tuning:
    for share in shares:
        reading = WindowReading(share=share, variance=1e-5)
        tuning = next_tuning(tuning, HERE, WindowResult(reading=reading), CONFIG, at_s)
    return tuning


@pytest.mark.parametrize(
    ("shares", "phase"),
    [
        pytest.param([0.9, 0.91, 0.89], TuningPhase.TUNED, id="what agrees"),
        pytest.param([0.9, 0.5, 0.9, 0.5, 0.5], TuningPhase.TUNED, id="two windows off, as in a pause"),
        pytest.param([0.9, 0.5, 0.5, 0.5], TuningPhase.WISHING, id="three windows off"),
        pytest.param([0.95, 0.95], TuningPhase.WISHING, id="not confirmed: two are enough"),
        pytest.param([0.9, 0.88, 0.86, 0.84, 0.82, 0.80, 0.78], TuningPhase.TUNED, id="a slow drift is followed"),
        pytest.param([0.0] * 20, TuningPhase.TUNED, id="idle GPUs say nothing"),
    ],
)
def test_a_tuned_job_is_searched_again_once_its_windows_leave_the_answer(
    shares: list[float], phase: TuningPhase
) -> None:
    assert watched(found(), *shares).phase is phase


def test_an_answer_that_nothing_confirmed_gives_back_the_cores_it_took() -> None:
    tuning = watched(found(start=6), 0.95, 0.95)
    assert (tuning.phase, tuning.wish and tuning.wish.cores) == (TuningPhase.WISHING, 6)


def test_an_old_answer_is_tried_again_and_each_time_later() -> None:
    old_s = NOW_S + CONFIG.watch.try_again_s
    assert watched(found(), 0.9, at_s=old_s - 1).phase is TuningPhase.TUNED
    again = watched(found(), 0.9, at_s=old_s)
    assert (again.phase, again.wish and again.wish.cores) == (TuningPhase.WISHING, 2)
    assert again.best_cores == 3
    assert again.watch is not None
    assert isinstance(again.found, CoreSearch)
    answer = abandon(again.found)
    assert watch_over(answer, again.watch, old_s, CONFIG.watch).tries == 1


def test_an_answer_that_was_found_again_is_left_later() -> None:
    left = watched(found(), 0.9, 0.5, 0.5, 0.5)
    assert left.watch is not None
    same, other = (found(cores=cores).found for cores in (4, 9))
    assert isinstance(same, SearchResult)
    assert isinstance(other, SearchResult)
    assert watch_over(same, left.watch, NOW_S, CONFIG.watch).patience == 6
    assert watch_over(other, left.watch, NOW_S, CONFIG.watch).patience == 3


def test_an_answer_found_in_deafening_noise_is_left_once_the_job_is_quiet() -> None:
    deaf = found(variance=(0.9 * 0.2) ** 2)
    assert watched(deaf, 0.9).phase is TuningPhase.TUNED
    assert watched(deaf, 0.9, 0.7).phase is TuningPhase.WISHING
    loud = WindowResult(reading=WindowReading(share=0.9, variance=(0.9 * 0.1) ** 2))
    for _ in range(20):
        deaf = next_tuning(deaf, HERE, loud, CONFIG, NOW_S)
    assert deaf.phase is TuningPhase.TUNED


def test_a_job_that_fell_silent_is_searched_again_once_its_gpus_work() -> None:
    tuning = replace(found(), phase=TuningPhase.STOPPED)
    assert isinstance(tuning.found, SearchResult)
    tuning = replace(tuning, found=replace(tuning.found, outcome=SearchOutcome.UNMEASURABLE))
    assert watched(tuning, 0.0).phase is TuningPhase.STOPPED
    assert next_tuning(tuning, HERE, WindowResult(reading=None), CONFIG, NOW_S) == tuning
    assert watched(tuning, 0.9).phase is TuningPhase.WISHING


def test_a_search_that_is_refused_its_first_count_begins_with_what_the_job_has() -> None:
    tuning = watched(found(start=6), 0.95, 0.95)
    refused = next_tuning(tuning, replace(HERE, answer=denied(tuning, most=3)), None, CONFIG, NOW_S)
    assert (refused.phase, isinstance(refused.found, CoreSearch) and refused.found.start) == (TuningPhase.MEASURING, 3)
