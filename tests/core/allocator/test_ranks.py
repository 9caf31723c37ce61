"""Jobs of several GPUs: the hungriest rank decides, and GPUs that wait busily deceive nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.allocator import (
    CoreSearch,
    CoreSearchConfig,
    SearchOutcome,
    SearchResult,
    TuningConfig,
    TuningPhase,
    next_tuning,
)
from coda.allocator.core_search import CoreLimits, begin_search, next_search
from coda.allocator.curve import WindowReading
from coda.allocator.ranks import result_of_job
from coda.allocator.tuning import TuningInput
from coda.allocator.window_samples import CpuWork, WindowResult
from coda.model.job import WishAnswer
from tests.core.allocator.data_parallel import PARALLEL_JOBS, ParallelJob, shown, tuned_together

pytestmark = pytest.mark.heavy

CONFIG = CoreSearchConfig()


def rank(share: float, cores: float | None, *, throttled: float = 0.0, held_up: bool | None = None) -> WindowResult:
    work = None if cores is None else CpuWork(cores=cores, variance=0.04, steady=True, throttled_share=throttled)
    return WindowResult(reading=WindowReading(share=share, variance=0.01), work=work, held_up=held_up)


def level(result: WindowResult) -> tuple[float, float, bool]:
    assert result.reading is not None
    return result.reading.share, result.reading.level, result.reading.throttled


@pytest.mark.parametrize(
    ("ranks", "gpus", "expected"),
    [
        pytest.param([rank(0.9, 4)], 1, (0.9, 0.9, False), id="one GPU is compared by its utilisation"),
        pytest.param([rank(0.9, 4)], 2, (0.9, 0.1, False), id="several by CPU use, of forty cores"),
        pytest.param([rank(1.0, 4), rank(0.6, 8)], 2, (0.6, 0.2, False), id="the hungriest rank decides"),
        pytest.param([rank(0.6, 4), rank(1.0, 8)], 2, (0.6, 0.2, False), id="each measure has its own rank"),
        pytest.param(
            [rank(1.0, 8), rank(0.6, None)], 2, (0.6, 0.6, False), id="by utilisation where CPU use is unknown"
        ),
        pytest.param(
            [rank(1.0, 8), rank(0.9, 8, throttled=0.2)], 2, (0.9, 0.2, True), id="one throttled rank is enough"
        ),
        pytest.param([rank(1.0, 80)], 2, (1.0, 1.0, False), id="more than all cores are all"),
    ],
)
def test_the_hungriest_rank_decides(ranks: list[WindowResult], gpus: int, expected: tuple[float, float, bool]) -> None:
    assert level(result_of_job(ranks, gpus, 40)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("used", "throttled", "cores", "expected"),
    [
        pytest.param(3.9, 0.5, 4, True, id="it uses all of them: it may live on its queue"),
        pytest.param(3.7, 0.5, 4, False, id="it bursts"),
        pytest.param(3.9, 0.05, 4, False, id="it is denied nothing"),
        pytest.param(3.9, 0.5, 0, False, id="nobody says how many it has"),
        pytest.param(None, 0.0, 4, False, id="its CPU use is unknown"),
    ],
)
def test_the_rank_of_one_gpu_is_throttled_if_it_uses_all_its_cores(
    used: float | None, throttled: float, cores: int, expected: bool
) -> None:
    found = result_of_job([rank(0.9, used, throttled=throttled)], 1, 40, cores=cores)
    assert level(found) == (0.9, 0.9, expected)


def test_several_gpus_without_the_cpu_use_of_a_rank_are_not_judged_by_throttling() -> None:
    found = result_of_job([rank(0.9, 4.0, throttled=0.9), rank(0.9, None)], 2, 40, cores=4)
    assert level(found) == (0.9, 0.9, False)


@pytest.mark.parametrize("unknown", [(), (1,)])
def test_what_rank_0_used_in_pauses_is_told_whatever_the_others_say(unknown: tuple[int, ...]) -> None:
    first = replace(rank(0.9, 4), pause_core_s=60.0)
    silent = WindowResult(reading=None, paused=True, pause_core_s=5.0)
    assert result_of_job([first, silent], 2, 40, unknown=unknown).pause_core_s == 60.0


@pytest.mark.parametrize(
    ("held_up", "expected"),
    [((True, False), True), ((False, False), False), ((None, True), True), ((None, False), None), ((None, None), None)],
)
def test_one_rank_that_its_cores_hold_up_holds_all_up(
    held_up: tuple[bool | None, bool | None], expected: bool | None
) -> None:
    assert result_of_job([rank(0.9, 4, held_up=each) for each in held_up], 2, 40).held_up is expected


def test_a_rank_that_says_nothing_silences_the_job() -> None:
    silent = WindowResult(reading=None, paused=True)
    assert result_of_job([rank(0.9, 4), silent], 2, 40) == silent


def test_a_rank_that_is_unknown_silences_the_job_whatever_the_others_say() -> None:
    assert result_of_job([rank(0.9, 4)], 2, 40, unknown=[1]) == WindowResult(reading=None, unknown=(1,))


@pytest.mark.parametrize(
    ("unknown", "who"),
    [
        ((1,), "the agent of rank 1"),
        ((1, 2), "the agents of ranks 1, 2"),
        (tuple(range(1, 9)), "the agents of ranks 1, 2, 3, 4, 5 and 3 more"),
    ],
)
def test_a_job_says_which_ranks_are_unknown(unknown: tuple[int, ...], who: str) -> None:
    job = TuningInput(attempt=1, cores=8, gpus=2, ranks=9, most_cores=48)
    tuning = next_tuning(None, job, None, TuningConfig(), 0.0)
    tuning = next_tuning(tuning, job, WindowResult(reading=None, unknown=unknown), TuningConfig(), 0.0)
    assert (tuning.reason, tuning.message) == (
        "RanksUnknown",
        f"{who} did not report in the last window: it is measured again",
    )


@pytest.mark.parametrize("name", PARALLEL_JOBS)
def test_a_job_of_several_gpus_gets_the_best_speed_within_three_percent(name: str) -> None:
    job, start = PARALLEL_JOBS[name]
    assert tuned_together(job, start).speed >= 0.97


@pytest.mark.parametrize("name", [name for name, (job, _start) in PARALLEL_JOBS.items() if job.waits])
def test_any_rank_of_a_job_whose_ranks_wait_for_each_other_shows_its_speed(name: str) -> None:
    job, start = PARALLEL_JOBS[name]
    assert tuned_together(job, start, known=1).speed >= 0.97


@pytest.mark.parametrize("hidden", [1, 4])
@pytest.mark.parametrize("name", [name for name, (job, _start) in PARALLEL_JOBS.items() if job.pods * job.gpus > 1])
def test_a_job_of_several_gpus_gives_up_no_cores_where_the_cpu_use_of_a_rank_is_unknown(name: str, hidden: int) -> None:
    job, start = PARALLEL_JOBS[name]
    tuned = tuned_together(job, start, hidden=hidden)
    assert tuned.least == start
    assert tuned.outcome == "Unresponsive" if tuned.cores == start else tuned.speed >= tuned.start


def test_gangs_of_one_gpu_per_rank_give_up_no_cores_either() -> None:
    tuned = tuned_together(ParallelJob(pods=2, gpus=1, load=6.0), 6, hidden=1)
    assert (tuned.least, tuned.cores, tuned.outcome) == (6, 6, "Unresponsive")


def test_a_search_that_is_denied_more_cores_gives_up_none_either_where_cpu_use_is_unknown() -> None:
    job = TuningInput(attempt=1, cores=6, gpus=1, ranks=2, most_cores=48)
    ranks = [rank(0.9, 4), rank(0.9, None)]
    tuning = next_tuning(None, job, None, TuningConfig(), 0.0)
    tuning = next_tuning(tuning, job, result_of_job(ranks, 2, 48), TuningConfig(), 90.0)
    assert tuning.wish is not None
    assert tuning.wish.cores > 6
    full = WishAnswer(sequence=1, granted=False, cores=6, answered_s=91.0, deadline_s=91.0, code="InsufficientCPU")
    after = next_tuning(tuning, replace(job, answer=full), None, TuningConfig(), 92.0)
    assert (after.phase, after.best_cores) == (TuningPhase.TUNED, 6)


def test_rank_0_does_not_show_what_other_ranks_need_that_it_never_waits_for() -> None:
    job, start = PARALLEL_JOBS["2 pods x 2 GPUs, each for itself, too many cores"]
    assert tuned_together(job, start, known=1).speed < 0.6


def test_the_model_shows_what_deceives_an_allocator() -> None:
    """Few cores: the faster rank's GPUs wait for the slower one's, and all seem busy."""
    job, _start = PARALLEL_JOBS["2 pods x 8 GPUs, second CPU 20 % slower"]
    assert shown(job, 4).busy[0] > 0.99
    assert shown(job, 4).speed < 0.2
    assert shown(job, 4).cpu_cores[0] < shown(job, 8).cpu_cores[0] / 1.9


def searched(start: int, gpus: int, share: float) -> SearchResult:
    limits = CoreLimits(least=gpus, most=48)
    step: CoreSearch | SearchResult = begin_search(start, gpus, limits)
    while isinstance(step, CoreSearch):
        step = next_search(step, WindowReading(share=share, variance=1e-6), limits, CONFIG)
    return step


def test_gpus_that_seem_busy_with_any_cores_leave_the_job_alone_and_it_says_so() -> None:
    answer = searched(24, 8, 1.0)
    assert (answer.outcome, answer.cores) == (SearchOutcome.UNRESPONSIVE, 24)


def test_no_search_goes_below_one_core_per_gpu() -> None:
    assert searched(12, 8, 0.9).cores == 8
    job = TuningInput(attempt=1, cores=4, gpus=8, most_cores=48)
    tuning = next_tuning(None, job, None, TuningConfig(), 0.0)
    assert tuning.wish is not None
    assert tuning.wish.cores == 8


def test_a_lower_count_at_which_a_rank_is_throttled_does_not_hold() -> None:
    limits = CoreLimits(least=2, most=48)
    reading = WindowReading(share=1.0, work=0.2, variance=1e-7)
    step = next_search(begin_search(10, 2, limits), reading, limits, CONFIG)
    assert isinstance(step, CoreSearch)
    free, throttled = (next_search(step, one, limits, CONFIG) for one in (reading, replace(reading, throttled=True)))
    assert isinstance(free, CoreSearch)
    assert isinstance(throttled, CoreSearch)
    assert (free.kept, throttled.kept) == (9, 10)


def test_cpu_use_that_is_known_no_more_begins_the_search_again() -> None:
    limits = CoreLimits(least=2, most=48)
    step = next_search(begin_search(10, 2, limits), WindowReading(share=1.0, work=0.2, variance=1e-7), limits, CONFIG)
    assert isinstance(step, CoreSearch)
    again = next_search(step, WindowReading(share=1.0, variance=1e-7), limits, CONFIG)
    assert isinstance(again, CoreSearch)
    assert (again.trying, again.curve, again.again) == (10, (), 1)


def test_cpu_use_that_is_unknown_at_times_earns_a_job_no_cores() -> None:
    """A search that begins again does so with what was found, not with the last count that was tried."""
    limits = CoreLimits(least=1, most=48)
    seen = WindowReading(share=0.9, variance=1e-7, blind=True)
    step = next_search(begin_search(10, 1, limits), seen, limits, CONFIG)
    assert isinstance(step, CoreSearch)
    assert step.trying > 10
    again = next_search(step, WindowReading(share=0.9, work=0.2, variance=1e-7), limits, CONFIG)
    assert isinstance(again, CoreSearch)
    assert (again.trying, again.again) == (10, 1)
