from __future__ import annotations

import pytest

from coda.allocator import CoreSearch, CoreSearchConfig, SearchOutcome, SearchResult
from coda.allocator.config import Stride
from coda.allocator.core_search import CoreLimits, Leg, abandon, begin_search, next_search, refuse
from coda.allocator.curve import WindowReading
from coda.errors import InvalidInput
from tests.core.allocator.curves import (
    MODELS,
    SYNERGY,
    Curve,
    Model,
    fewest_best,
    interpolated,
    linear_then_drop,
    model_curve,
    model_optimum,
    tuned,
)

CONFIG = CoreSearchConfig()
UNIT = CoreSearchConfig(stride=Stride.UNIT, faint_moves=0)
PLATEAU = linear_then_drop(4, 0.8, drop=0.0)


@pytest.mark.parametrize("config", [CONFIG, UNIT], ids=["scaled", "unit"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_takes_table_ii_s_steps_to_the_optimum(model: Model, config: CoreSearchConfig) -> None:
    answer = tuned(model_curve(model), model.start, config=config)
    assert (answer.windows, answer.cores, answer.outcome) == (model.steps, model.optimum, SearchOutcome.FOUND)


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_finds_the_optimum_of_several_gpus_in_few_steps(model: Model, gpus: int) -> None:
    answer = tuned(model_curve(model, gpus), model.start * gpus, gpus=gpus, most=48)
    assert answer.cores == model_optimum(model, gpus)
    assert answer.windows <= 9


@pytest.mark.parametrize("noise", [0.01, 0.03])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_noise_moves_the_answer_by_more_than_a_core_in_at_most_one_of_twenty_runs(model: Model, noise: float) -> None:
    answers = [tuned(model_curve(model), model.start, noise=noise, seed=f"{model.name} {run}") for run in range(200)]
    assert sum(abs(answer.cores - model.optimum) <= 1 for answer in answers) >= 190


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("name", SYNERGY)
def test_finds_the_optimum_of_synergy_s_curves(name: str, noise: float) -> None:
    curve, start = interpolated(SYNERGY[name]), next(model.start for model in MODELS if model.name == name)
    best = fewest_best(curve, 28, CONFIG.noise_margin)
    answers = [tuned(curve, start, noise=noise, seed=f"{name} {run}") for run in range(200)]
    assert sum(abs(answer.cores - best) <= 1 for answer in answers) >= 190


@pytest.mark.parametrize(
    ("curve", "start", "most", "expected"),
    [
        pytest.param(PLATEAU, 20, 28, (4, SearchOutcome.FOUND), id="down a plateau to its fewest cores"),
        pytest.param(lambda _cores: 0.8, 20, 28, (1, SearchOutcome.FOUND), id="cores do not matter at all"),
        pytest.param(linear_then_drop(9, 0.8), 3, 28, (9, SearchOutcome.FOUND), id="up to the optimum"),
        pytest.param(linear_then_drop(9, 0.8), 3, 6, (6, SearchOutcome.LIMITED), id="up to what the node has"),
        pytest.param(linear_then_drop(9, 0.8), 6, 6, (6, SearchOutcome.LIMITED), id="starts with all the node has"),
        pytest.param(linear_then_drop(1, 0.8), 1, 28, (1, SearchOutcome.FOUND), id="starts at one core"),
        pytest.param(
            linear_then_drop(6, 0.8), 40, 6, (6, SearchOutcome.LIMITED), id="a start above the node is clipped"
        ),
    ],
)
def test_ends_at_the_fewest_cores_that_keep_the_gpus_busy(
    curve: Curve, start: int, most: int, expected: tuple[int, SearchOutcome]
) -> None:
    for config in (CONFIG, UNIT):
        answer = tuned(curve, start, most=most, config=config)
        assert (answer.cores, answer.outcome) == expected


def test_patience_looks_past_a_flat_piece_that_stops_coda_s_rule() -> None:
    stairs: Curve = lambda cores: {1: 0.2, 2: 0.4, 3: 0.4, 4: 0.8}[min(cores, 4)]  # noqa: E731
    assert tuned(stairs, 2).cores == 2
    assert tuned(stairs, 2, config=CoreSearchConfig(patience=1)).cores == 4


def test_a_faint_gain_is_followed_by_one_longer_move() -> None:
    slow: Curve = lambda cores: 0.4 + 0.003 * min(cores, 10) if cores > 2 else 0.1  # noqa: E731
    assert tuned(slow, 3, config=UNIT).cores == 3
    assert tuned(slow, 3).cores == 9


def test_measures_again_while_a_difference_drowns_in_noise() -> None:
    limits = CoreLimits(most=8)
    at_start = begin_search(4, 1, limits)
    first = next_search(at_start, WindowReading(share=0.80, variance=1e-4), limits, CONFIG)
    assert isinstance(first, CoreSearch)
    again = next_search(first, WindowReading(share=0.79, variance=1e-4), limits, CONFIG)
    assert isinstance(again, CoreSearch)
    assert (first.trying, again.trying) == (3, 3)


def climbing(cores: int, *, most: int = 64, gpus: int = 1) -> tuple[CoreSearch, CoreLimits]:
    """A search on its way up that now wants at least `cores`."""
    curve, limits = linear_then_drop(40, 0.8), CoreLimits(most=most)
    search = begin_search(3, gpus, limits)
    while search.trying < cores:
        step = next_search(search, WindowReading(share=curve(search.trying)), limits, CONFIG)
        assert isinstance(step, CoreSearch)
        search = step
    return search, limits


def test_a_refused_growth_is_halved_until_nothing_more_can_be_had() -> None:
    search, limits = climbing(20)
    curve, asked = linear_then_drop(40, 0.8), []
    step: CoreSearch | SearchResult = search
    while isinstance(step, CoreSearch):
        asked.append(step.trying)
        had = step.trying <= 13
        reading = WindowReading(share=curve(step.trying))
        step = next_search(step, reading, limits, CONFIG) if had else refuse(step, limits, CONFIG)
    assert (asked, step.cores, step.outcome) == ([20, 16, 14, 13], 13, SearchOutcome.LIMITED)


def test_a_refused_growth_by_one_core_ends_the_search_with_what_it_has() -> None:
    search, limits = climbing(4)
    step = refuse(search, limits, CONFIG)
    assert isinstance(step, SearchResult)
    assert (step.cores, step.outcome) == (3, SearchOutcome.LIMITED)


def test_a_job_whose_cores_cannot_be_changed_keeps_its_start_point() -> None:
    limits = CoreLimits(most=8)
    step = next_search(begin_search(4, 1, limits), WindowReading(share=0.5), limits, CONFIG)
    assert isinstance(step, CoreSearch)
    answer = refuse(step, limits, CONFIG)
    assert isinstance(answer, SearchResult)
    assert (answer.cores, answer.outcome) == (4, SearchOutcome.REFUSED)


def test_an_abandoned_search_answers_with_the_best_so_far() -> None:
    search, _limits = climbing(6)
    assert (abandon(search).cores, abandon(search).outcome) == (5, SearchOutcome.ABANDONED)
    assert abandon(begin_search(4, 1, CoreLimits(most=8))).cores == 4


@pytest.mark.parametrize("nothing", [None, WindowReading(share=0.0)], ids=["no samples", "idle GPUs"])
def test_gives_up_on_a_job_whose_utilisation_cannot_be_measured(nothing: WindowReading | None) -> None:
    limits = CoreLimits(most=8)
    step: CoreSearch | SearchResult = begin_search(4, 1, limits)
    tries = 0
    while isinstance(step, CoreSearch):
        assert step.trying == 4
        step, tries = next_search(step, nothing, limits, CONFIG), tries + 1
    assert (tries, step.cores, step.outcome, step.curve) == (41, 4, SearchOutcome.UNMEASURABLE, ())


@pytest.mark.parametrize("nothing", [None, WindowReading(share=0.0)], ids=["no samples", "idle GPUs"])
def test_gives_up_sooner_once_something_was_measured_and_keeps_that(nothing: WindowReading | None) -> None:
    limits = CoreLimits(most=8)
    step = next_search(begin_search(4, 1, limits), WindowReading(share=0.5), limits, CONFIG)
    tries = 0
    while isinstance(step, CoreSearch):
        assert step.trying == 3
        step, tries = next_search(step, nothing, limits, CONFIG), tries + 1
    assert (tries, step.cores, step.outcome) == (4, 4, SearchOutcome.UNMEASURABLE)


def test_a_job_that_loads_its_data_for_half_an_hour_is_tuned_all_the_same() -> None:
    limits = CoreLimits(most=8)
    step: CoreSearch | SearchResult = begin_search(4, 1, limits)
    for _ in range(20):
        assert isinstance(step, CoreSearch)
        step = next_search(step, WindowReading(share=0.0), limits, CONFIG)
    assert isinstance(step, CoreSearch)
    step = next_search(step, WindowReading(share=0.5), limits, CONFIG)
    assert isinstance(step, CoreSearch)
    assert (step.trying, step.silent) == (3, 0)


def test_a_silent_window_is_forgotten_once_utilisation_is_back() -> None:
    limits = CoreLimits(most=8)
    quiet = next_search(begin_search(4, 1, limits), None, limits, CONFIG)
    assert isinstance(quiet, CoreSearch)
    loud = next_search(quiet, WindowReading(share=0.5), limits, CONFIG)
    assert isinstance(loud, CoreSearch)
    assert (quiet.silent, loud.silent) == (1, 0)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_refuses_what_no_gpu_can_say(share: float) -> None:
    with pytest.raises(InvalidInput, match="GPU utilisation must be 0 to 1"):
        WindowReading(share=share)


def walked(step: CoreSearch | SearchResult, *readings: WindowReading, most: int = 48) -> CoreSearch:
    """A search after these windows, which has no answer yet."""
    for reading in readings:
        assert isinstance(step, CoreSearch)
        step = next_search(step, reading, CoreLimits(most=most), CONFIG)
    assert isinstance(step, CoreSearch)
    return step


def read(share: float, *, error: float = 0.003, steady: bool = True) -> WindowReading:
    return WindowReading(share=share, variance=(error * share) ** 2, steady=steady)


BEGUN = begin_search(8, 1, CoreLimits(most=48))


@pytest.mark.parametrize(
    ("readings", "leg", "level"),
    [
        pytest.param([read(0.8)], Leg.DOWN, 0.8, id="a steady window is believed"),
        pytest.param([read(0.5, steady=False)], Leg.START, 0.5, id="one that rises is not"),
        pytest.param([read(0.5, steady=False), read(0.6), read(0.7)], Leg.START, 0.7, id="nor as long as it rises"),
        pytest.param([read(0.5, steady=False), read(0.8), read(0.805)], Leg.DOWN, 0.8025, id="until two agree"),
        pytest.param(
            [read(0.8, steady=False), read(0.7), read(0.8)], Leg.DOWN, 0.75, id="up and down is noise, and its mean"
        ),
        pytest.param(
            [read(0.1 + 0.05 * at, steady=False) for at in range(CONFIG.start_windows)],
            Leg.DOWN,
            0.65,
            id="a job that rises for ever is searched all the same",
        ),
    ],
)
def test_the_start_point_is_believed_once_it_stands_still(
    readings: list[WindowReading], leg: Leg, level: float
) -> None:
    search = walked(BEGUN, *readings)
    assert search.leg is leg
    assert search.curve[-1].share == pytest.approx(level)


@pytest.mark.parametrize(
    ("share", "odd"),
    [
        pytest.param(0.80, False, id="fewer cores are as good"),
        pytest.param(0.71, False, id="fewer cores are worse in proportion"),
        pytest.param(0.60, True, id="fewer cores are far worse: it paused"),
        pytest.param(0.90, True, id="fewer cores are far better: the start was a pause"),
    ],
)
def test_a_reading_that_no_curve_has_is_measured_again(share: float, odd: bool) -> None:
    search = walked(BEGUN, read(0.8), read(share))
    assert (search.odd, search.again) == (odd, 0)
    if odd:
        assert walked(search, read(0.8)).odd is False
        assert 7 not in {point.cores for point in search.curve}


def test_a_search_whose_readings_fit_to_no_curve_begins_again_with_no_fewer_cores() -> None:
    search = walked(BEGUN, read(0.4), read(0.8), read(0.8))
    assert (search.leg, search.trying, search.again, search.curve) == (Leg.START, 8, 1, ())


def test_a_job_that_never_fits_to_a_curve_gets_an_answer_too() -> None:
    step: CoreSearch | SearchResult = BEGUN
    readings = 0
    while isinstance(step, CoreSearch):
        step = next_search(step, read(0.3 if readings % 3 else 0.9), CoreLimits(most=48), CONFIG)
        readings += 1
    assert readings < 60


def test_noise_makes_moves_as_large_as_it_lets_one_see() -> None:
    assert walked(begin_search(40, 8, CoreLimits(most=48)), read(0.8)).trying == 39
    assert walked(begin_search(40, 8, CoreLimits(most=48)), read(0.8, error=0.04)).trying == 30
    assert walked(begin_search(40, 8, CoreLimits(most=48)), read(0.8, error=0.1)).trying == 20


def test_noise_that_hides_everything_ends_the_search_with_what_the_job_had() -> None:
    limits = CoreLimits(most=48)
    at_once = next_search(BEGUN, read(0.8, error=0.2), limits, CONFIG)
    later = next_search(walked(BEGUN, read(0.8), read(0.8)), read(0.8, error=0.5), limits, CONFIG)
    for answer in (at_once, later):
        assert isinstance(answer, SearchResult)
        assert (answer.outcome, answer.cores) == (SearchOutcome.TOO_NOISY, 8)


def test_a_gain_that_noise_may_hide_is_not_called_found_and_takes_no_cores_away() -> None:
    limits, step = CoreLimits(most=48), next_search(BEGUN, read(0.8, error=0.08), CoreLimits(most=48), CONFIG)
    while isinstance(step, CoreSearch):
        step = next_search(step, read(0.8 if step.trying >= 8 else 0.55, error=0.08), limits, CONFIG)
    assert (step.outcome, step.cores) == (SearchOutcome.TOO_NOISY, 8)
