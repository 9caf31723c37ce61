from __future__ import annotations

import pytest

from coda.allocator import CoreSearch, CoreSearchConfig, SearchOutcome, SearchResult
from coda.allocator.config import Stride
from coda.allocator.core_search import CoreLimits, abandon, begin_search, next_search, refuse
from coda.allocator.curve import WindowReading, reading_from_samples
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


def test_a_reading_is_the_second_half_of_its_window() -> None:
    samples = [(float(at_s), 0.1 if at_s < 45 else 0.8 + 0.02 * (at_s % 2)) for at_s in range(120)]
    late = [(at_s, 0.0 if at_s > 90 else share) for at_s, share in samples]
    reading = reading_from_samples(late, CONFIG)
    assert reading is not None
    assert reading.share == pytest.approx(0.81, abs=0.001)
    assert reading.variance == pytest.approx(0.0001 / 46, rel=0.05)


def test_too_few_samples_are_no_reading() -> None:
    assert reading_from_samples([(50.0 + at_s, 0.5) for at_s in range(9)], CONFIG) is None


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_refuses_what_no_gpu_can_say(share: float) -> None:
    with pytest.raises(InvalidInput, match="GPU utilisation must be 0 to 1"):
        WindowReading(share=share)
