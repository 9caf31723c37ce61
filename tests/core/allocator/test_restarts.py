"""A job that is stopped and started again: its next attempt neither loses more to its pauses nor forgets its answer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from coda.allocator import CoreSearch, SearchOutcome, SearchResult, Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.curve import CurvePoint
from coda.allocator.pauses import ALLOWED_LOSS, CpuPauses
from coda.allocator.tuning import TuningInput
from coda.allocator.watch import Watch
from tests.core.allocator.pipelines import CpuPhase, Pipeline, PipelineModel, TunedPipeline

CONFIG = TuningConfig()
NOW_S = 50_000.0
ANSWER = SearchResult(cores=4, outcome=SearchOutcome.FOUND, curve=(CurvePoint(cores=4, share=0.9),), start=8)
WATCH = Watch(cores=4, level=0.9, noise=0.01, since_s=900.0, patience=3)
PAUSES = CpuPauses(cores=8, since_s=0.0, core_s=100.0, until_s=1800.0, gpus=2, rank_gpus=1)
BEGUN_LATER = replace(PAUSES, served_s=1800.0)
TUNED = Tuning(attempt=1, phase=TuningPhase.TUNED, found=ANSWER, watch=replace(WATCH, confirmed=True), pauses=PAUSES)
NEXT = TuningInput(attempt=2, cores=4, gpus=1, ranks=2, most_cores=16)


def next_attempt(before: Tuning, job: TuningInput = NEXT) -> Tuning:
    return next_tuning(before, job, None, CONFIG, NOW_S)


@pytest.mark.parametrize(
    ("before", "cores"),
    [
        pytest.param(TUNED, 4, id="a confirmed answer"),
        pytest.param(replace(TUNED, watch=WATCH), 8, id="nothing confirmed it: the first attempt's"),
        pytest.param(replace(TUNED, watch=None), 8, id="nothing watched it"),
        pytest.param(replace(TUNED, watch=None, found=replace(ANSWER, cores=11)), 11, id="more than the first"),
        pytest.param(replace(TUNED, found=replace(ANSWER, cores=6)), 6, id="what its pauses need, not confirmed"),
        pytest.param(replace(TUNED, found=replace(ANSWER, curve=())), None, id="nothing was measured"),
    ],
)
def test_the_next_attempt_begins_with_fewer_cores_only_if_a_window_after_the_search_agreed(
    before: Tuning, cores: int | None
) -> None:
    assert before.best_cores == cores


def test_a_search_that_goes_down_from_a_confirmed_answer_teaches_that_answer() -> None:
    curve = (CurvePoint(cores=3, share=0.9), CurvePoint(cores=4, share=0.9))
    search = CoreSearch(start=4, gpus=1, trying=2, kept=3, curve=curve)
    assert replace(TUNED, phase=TuningPhase.MEASURING, found=search).best_cores == 4


def test_what_pauses_cost_is_known_to_the_next_attempt_and_the_time_between_them_does_not_count() -> None:
    pauses = next_attempt(TUNED).pauses
    assert pauses == replace(PAUSES, since_s=NOW_S - 1800.0, until_s=NOW_S)
    assert pauses.least_cores(NOW_S) == PAUSES.least_cores(1800.0) > 1
    third = next_tuning(next_attempt(TUNED), replace(NEXT, attempt=3), None, CONFIG, 2 * NOW_S).pauses
    assert third is not None
    assert third.least_cores(2 * NOW_S) == PAUSES.least_cores(1800.0)


@pytest.mark.parametrize(
    ("served_s", "tuned_s"),
    [
        pytest.param(9000.0, 7200.0, id="of which it ran two hours since its pauses are counted"),
        pytest.param(2000.0, 1800.0, id="it was tuned for longer than was noted"),
        pytest.param(9e9, NOW_S, id="no longer than the clock has gone"),
    ],
)
def test_all_the_time_that_earlier_attempts_ran_counts_for_their_pauses(served_s: float, tuned_s: float) -> None:
    pauses = next_attempt(replace(TUNED, pauses=BEGUN_LATER), replace(NEXT, served_s=served_s)).pauses
    assert pauses == replace(BEGUN_LATER, since_s=NOW_S - tuned_s, until_s=NOW_S)


def test_what_the_job_ran_before_its_pauses_were_counted_is_noted() -> None:
    begun = next_tuning(None, replace(NEXT, served_s=600.0), None, CONFIG, NOW_S)
    assert begun.pauses == CpuPauses(cores=4, since_s=NOW_S, gpus=2, rank_gpus=1, served_s=600.0)


def test_an_attempt_with_too_few_cores_for_its_pauses_asks_for_them_at_once() -> None:
    rolls_out = replace(TUNED, pauses=replace(PAUSES, core_s=4000.0))
    begun = next_attempt(rolls_out)
    assert begun.wish is not None
    assert (begun.phase, begun.wish.cores) == (TuningPhase.WISHING, rolls_out.pauses.least_cores(1800.0))  # type: ignore[union-attr]


@pytest.mark.parametrize(("gpus", "rank_gpus"), [(0, 0), (4, 1), (2, 0), (2, 2)])
def test_a_job_of_another_size_or_of_an_older_agent_begins_as_a_new_one(gpus: int, rank_gpus: int) -> None:
    """One rank of two GPUs needs twice the cores of each of two ranks with one."""
    begun = next_attempt(replace(TUNED, pauses=replace(PAUSES, gpus=gpus, rank_gpus=rank_gpus)))
    assert (begun.pauses, begun.watch) == (CpuPauses(cores=4, since_s=NOW_S, gpus=2, rank_gpus=1), None)


def test_a_restart_takes_no_cores_from_a_confirmed_answer_and_forgets_it_not_before_its_first_window() -> None:
    begun = next_attempt(TUNED)
    assert isinstance(begun.found, CoreSearch)
    assert (begun.found.start, begun.found.floor, begun.best_cores) == (4, 4, 4)
    assert begun.watch == TUNED.watch
    assert next_attempt(begun, replace(NEXT, attempt=3)).best_cores == 4


def test_a_restart_may_take_cores_that_are_more_than_the_first_ones() -> None:
    """Else noise would add some with each restart, and never take them back."""
    grown = replace(TUNED, found=replace(ANSWER, cores=12), watch=replace(WATCH, cores=12, confirmed=True))
    begun = next_attempt(grown, replace(NEXT, cores=12))
    assert isinstance(begun.found, CoreSearch)
    assert (begun.found.start, begun.found.floor) == (12, 8)


def test_a_restart_whose_answer_nothing_confirmed_searches_in_both_directions() -> None:
    begun = next_attempt(replace(TUNED, watch=WATCH), replace(NEXT, cores=8))
    assert isinstance(begun.found, CoreSearch)
    assert (begun.found.start, begun.found.floor, begun.watch) == (8, 0, None)


def restarted(model: PipelineModel, need: int, start: int, every_s: int, busy_s: float = 0.0) -> tuple[float, int]:
    """Return the steps that a tuned job loses against its first cores, and the cores that it ends with.

    `busy_s`: how long it works at each start, with twice the cores that its loading needs, before it trains."""
    length_s = round(model.hours * 3600)
    plain, tuned = (Pipeline(model, need, random.Random(7), [], []) for _ in range(2))
    for at_s in range(length_s):
        plain.loaded_s = plain.loaded_s if at_s % every_s else 0.0
        plain.left = plain.left if at_s % every_s else 2 * need * busy_s
        plain.second(at_s, start)
    before, cores, passed = None, start, list[int]()
    for attempt, end_s in enumerate(range(every_s, length_s + 1, every_s), 1):
        tuned.loaded_s, tuned.left = 0.0, 2 * need * busy_s
        job = TunedPipeline(tuned, cores, end_s, CONFIG)
        job.cores_by_s = passed
        job.input = replace(job.input, attempt=attempt, served_s=float(len(passed)))
        job.tuning = next_tuning(before, job.input, None, CONFIG, float(len(passed)))
        job.run()
        before, cores = job.tuning, job.tuning.best_cores or cores
    return 1 - tuned.steps / plain.steps, cores


@pytest.mark.parametrize("minutes", [20, 45])
def test_restarts_do_not_take_the_cores_of_a_job_that_evaluates(minutes: int) -> None:
    model = PipelineModel(hours=6, phase=CpuPhase(every_s=1200, work_s=120), training=0.2)
    lost, _ = restarted(model, 8, 8, 60 * minutes)
    assert lost < 0.025


def test_a_job_that_needs_fewer_cores_keeps_what_it_saves_over_restarts() -> None:
    lost, cores = restarted(PipelineModel(hours=6), 8, 16, 1200)
    assert cores in (8, 9)
    assert lost < 0.01


@pytest.mark.parametrize(("hours", "busy_s", "most"), [(2, 60, 6), (4, 120, 7)])
def test_a_quiet_job_with_a_busy_start_keeps_what_it_saves_over_restarts(hours: int, busy_s: int, most: int) -> None:
    """What its starts need is little of all the time that it ran."""
    model = PipelineModel(hours=12, phase=CpuPhase(every_s=1e12, work_s=1.0, width=2.0))
    lost, cores = restarted(model, 4, 16, 3600 * hours, busy_s)
    assert 4 <= cores <= most
    assert lost < ALLOWED_LOSS
