"""The profile sets against every fact that CODA's and Philly's text states about the models (figures excluded)."""

import copy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.allocator import Category, start_cores
from coda.errors import InvalidInput
from coda_sim.workload import profile_set
from coda_sim.workload.model_profiles import PROFILE_SETS, ModelProfile, profile_set_from_tables
from coda_sim.workload.provenance import Provenance
from coda_sim.workload.speed_curves import (
    Distance,
    asked_speed,
    bandwidth_bytes_per_s,
    best_cores,
    contention_loss,
    speed,
    utilisation,
)

NODE_CORES = 28
MODELS = ("Alexnet", "VGG16", "InceptionV3", "Resnet-50", "BAT", "Transformer", "Wavenet", "DeepSpeech")
CV = ("Alexnet", "Resnet-50", "InceptionV3", "VGG16")  # from the simplest to the most complex

TABLE_II = {  # profiling steps
    "Alexnet": 4,
    "VGG16": 4,
    "InceptionV3": 3,
    "Resnet-50": 3,
    "BAT": 4,
    "Transformer": 3,
    "Wavenet": 3,
    "DeepSpeech": 3,
}

every_set = pytest.mark.parametrize("name", PROFILE_SETS)
every_fitted_set = pytest.mark.parametrize("name", ["paper", "steep"])


def profiles(name: str) -> dict[str, ModelProfile]:
    return dict(profile_set(name).profile_by_model)


def peak_at(profile: ModelProfile, gpus: int, distance: Distance = Distance.ONE_NODE) -> int:
    return max(range(1, 121), key=lambda cores: (speed(profile, cores, gpus, distance), -cores))


def loss_factor_at_two_cores(profile: ModelProfile, gpus: int) -> float:
    """How many times slower than at its best."""
    return speed(profile, best_cores(profile, gpus), gpus) / speed(profile, 2, gpus)


@every_set
def test_the_models_are_those_of_table_1_and_every_number_has_an_origin(name: str) -> None:
    found = profile_set(name)
    assert tuple(found.profile_by_model) == MODELS
    assert [found.profile_by_model[model].category for model in MODELS] == [
        *[Category.CV] * 4,
        *[Category.NLP] * 2,
        *[Category.SPEECH] * 2,
    ]
    assert all(origin.source for origin in found.origin_by_column.values())


def test_what_is_only_in_a_figure_is_marked_as_assumed() -> None:
    origins = profile_set("paper").origin_by_column
    for column in ("one_gpu_cores", "more_gpu_cores", "peak_utilisation", "bandwidth_gb_per_s", "contention_loss"):
        assert origins[column].tag is Provenance.FIGURE
    assert profile_set("synergy").origin_by_column["measured"].tag is Provenance.MEASURED


def test_a_number_without_an_origin_is_refused() -> None:
    shared = dict.fromkeys(
        (
            "base_share",
            "drop_per_core",
            "drop_at_most_cores",
            "multi_node_cores",
            "multi_node_speed",
            "busy_nodes_speed",
            "racks_speed",
            "contention_from",
            "node_bandwidth_gb_per_s",
        ),
        1,
    )
    origins: dict[str, Any] = {column: {"tag": "A", "source": "ours"} for column in shared}
    tables = {"summary": "", "shared": shared, "models": {}, "origins": origins}
    assert profile_set_from_tables("ours", tables).origin_by_column["base_share"].tag is Provenance.ASSUMED
    broken = copy.deepcopy(tables)
    broken["models"] = {"GPT": {"weights": 1}}
    with pytest.raises(InvalidInput, match="profile set ours: no origin for weights"):
        profile_set_from_tables("ours", broken)
    with pytest.raises(InvalidInput, match="'theirs' is no profile set: choose one of paper, steep, synergy"):
        profile_set("theirs")


@every_set
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_speed_and_utilisation_peak_at_the_same_cores_and_rise_linearly_up_to_them(name: str, gpus: int) -> None:
    for profile in profiles(name).values():
        best = best_cores(profile, gpus)
        assert best == peak_at(profile, gpus)
        busy = {cores: utilisation(profile, speed(profile, cores, gpus)) for cores in range(1, 121)}
        assert max(busy, key=lambda cores: (busy[cores], -cores)) == best
        assert busy[best] == profile.peak_utilisation
        if not profile.measured and best > 2:
            steps = [speed(profile, cores + 1, gpus) - speed(profile, cores, gpus) for cores in range(1, best)]
            assert steps == pytest.approx([steps[0]] * len(steps))


@every_fitted_set
def test_above_the_best_count_the_speed_drops_slightly(name: str) -> None:
    for profile in profiles(name).values():
        best = best_cores(profile, 1)
        speeds = [speed(profile, cores, 1) for cores in range(best, best + 11)]
        assert all(after < before for before, after in pairwise(speeds))
        assert speeds[-1] >= 0.95
        assert speed(profile, best + 50, 1) == speeds[-1]


@every_set
def test_with_two_cores_only_transformer_on_one_gpu_is_at_its_best(name: str) -> None:
    """The others lose from 10 % on, over the 1N1G and 1N4G curves."""
    for model, profile in profiles(name).items():
        for gpus in (1, 4):
            share = speed(profile, 2, gpus)
            if (model, gpus) == ("Transformer", 1):
                assert share == 1.0
            else:
                assert share <= 0.9, (model, gpus)


@pytest.mark.parametrize(("name", "holds"), [("steep", True), ("synergy", True), ("paper", False)])
def test_the_steepest_four_gpu_curve_loses_more_than_five_times_its_speed_at_two_cores(name: str, holds: bool) -> None:
    """Not so in `paper`: its foot of a quarter is the price of its calibration, which is why `steep` is there."""
    steepest = max(loss_factor_at_two_cores(profile, 4) for profile in profiles(name).values())
    assert (steepest > 5) is holds
    if name == "steep":
        assert loss_factor_at_two_cores(profiles(name)["BAT"], 4) == steepest < 6


@every_set
def test_simple_networks_need_the_most_cores_among_vision_models_and_wavenet_more_than_deepspeech(name: str) -> None:
    of = profiles(name)
    cores = [best_cores(of[model], 1) for model in CV]
    assert cores == sorted(cores, reverse=True)
    assert cores[0] > max(cores[1:])
    assert best_cores(of["Wavenet"], 1) > best_cores(of["DeepSpeech"], 1)
    assert best_cores(of["Wavenet"], 4) > best_cores(of["DeepSpeech"], 4)


@every_set
def test_the_best_count_on_one_node_is_linear_in_the_gpus_with_a_slope_per_model(name: str) -> None:
    for profile in profiles(name).values():
        counts = [best_cores(profile, gpus) for gpus in range(1, 9)]
        slope = (counts[-1] - counts[0]) / 7
        assert slope > 0
        assert all(abs(count - (counts[0] + slope * more)) <= 1 for more, count in enumerate(counts))


@every_set
def test_over_several_nodes_two_cores_are_the_most_that_help(name: str) -> None:
    for profile in profiles(name).values():
        for gpus in (1, 4):
            assert best_cores(profile, gpus, Distance.NODES) <= 2
            assert speed(profile, 3, gpus, Distance.NODES) < speed(profile, 2, gpus, Distance.NODES)


@every_fitted_set
def test_several_nodes_are_25_to_30_percent_slower_than_one_node_with_four_gpus(name: str) -> None:
    for profile in profiles(name).values():
        best = speed(profile, best_cores(profile, 4), 4)
        assert 0.70 <= speed(profile, 2, 2, Distance.NODES) / best <= 0.75


def test_the_distances_of_philly_cost_what_its_table_3_says() -> None:
    resnet = profiles("synergy")["Resnet-50"]
    one_node = speed(resnet, best_cores(resnet, 2), 2)
    apart = [Distance.NODES, Distance.BUSY_NODES, Distance.RACKS]
    speeds = [speed(resnet, 2, 1, distance) / one_node for distance in apart]
    assert speeds == pytest.approx([98.0 / 114.8, 75.6 / 114.8, 74.1 / 114.8])


@every_set
def test_bandwidth_falls_with_the_complexity_of_vision_models_and_is_tiny_for_language(name: str) -> None:
    of = profiles(name)
    wanted = [bandwidth_bytes_per_s(of[model], 1) for model in CV]
    assert wanted == sorted(wanted, reverse=True)
    assert all(bandwidth_bytes_per_s(of[model], 1) < 0.15 * min(wanted) for model in ("BAT", "Transformer"))
    assert bandwidth_bytes_per_s(of["Wavenet"], 1) != bandwidth_bytes_per_s(of["DeepSpeech"], 1)
    assert all(bandwidth_bytes_per_s(of[model], 4) == 4 * bandwidth_bytes_per_s(of[model], 1) for model in MODELS)
    assert profile_set(name).profile_by_model["BAT"].shared.node_bandwidth_bytes_per_s == 256e9


@every_set
def test_contention_hurts_whom_the_text_says(name: str) -> None:
    full = {model: contention_loss(profile, 1.0) for model, profile in profiles(name).items()}
    assert full["Alexnet"] > 0.1
    assert all(full[model] < 0.05 for model in ("VGG16", "InceptionV3", "Resnet-50"))
    assert all(full[model] >= 0.5 for model in ("BAT", "Transformer"))
    assert full["DeepSpeech"] > full["Wavenet"] > 0.1


@every_fitted_set
def test_start_points_and_steps_of_the_search_are_those_of_table_2(name: str) -> None:
    for model, profile in profiles(name).items():
        start = start_cores(profile.category, profile.hints, 1, NODE_CORES)
        assert _steps_of_the_unit_search(profile, start) == TABLE_II[model], model


def _steps_of_the_unit_search(profile: ModelProfile, start: int) -> int:
    """Measurements of CODA's search by single cores: down while it helps, else up while it helps."""

    def helps(cores: int, before: int) -> bool:
        return speed(profile, cores, 1) > 1.01 * speed(profile, before, 1)

    steps, at = 2, start - 1
    direction = -1 if helps(start - 1, start) else 1
    if direction == 1:
        steps, at = 3, start + 1
        if not helps(at, start):
            return steps
    while helps(at + direction, at):
        steps, at = steps + 1, at + direction
    return steps + 1


@pytest.mark.parametrize(
    ("model", "cores", "gpus", "share"),
    [
        ("Alexnet", 1, 1, 0.10),
        ("Alexnet", 4, 1, 0.43),
        ("Alexnet", 5, 1, 0.515),
        ("Alexnet", 24, 2, 1.0),
        ("Alexnet", 20, 1, 1.0),
        ("Resnet-50", 2, 1, 0.64),
        ("Resnet-50", 2, 4, 0.175),
        ("Transformer", 4, 4, 1.0),
        ("DeepSpeech", 5, 2, 0.83),
    ],
)
def test_measured_curves_go_through_their_points_and_straight_between_them(
    model: str, cores: int, gpus: int, share: float
) -> None:
    assert speed(profiles("synergy")[model], cores, gpus) == pytest.approx(share)


@pytest.mark.parametrize(("bandwidth_share", "loss"), [(0.0, 0.0), (0.75, 0.0), (0.875, 0.25), (1.0, 0.5), (3.0, 0.5)])
def test_contention_starts_at_three_quarters_and_ends_at_full_bandwidth(bandwidth_share: float, loss: float) -> None:
    transformer = profiles("paper")["Transformer"]
    assert contention_loss(transformer, bandwidth_share) == pytest.approx(loss)
    assert speed(transformer, 2, 1, bandwidth_share=bandwidth_share) == pytest.approx(1 - loss)


def test_a_recorded_run_of_several_replicas_was_on_as_many_nodes() -> None:
    bat = profiles("paper")["BAT"]
    assert asked_speed(bat, 6, 1, 1) == 1.0
    assert asked_speed(bat, 2, 4, 2) == pytest.approx(0.725)


@given(
    name=st.sampled_from(PROFILE_SETS),
    model=st.sampled_from(MODELS),
    cores=st.floats(0.1, 200),
    gpus=st.integers(1, 16),
    distance=st.sampled_from(Distance),
    bandwidth_share=st.floats(0, 5),
)
def test_every_speed_is_above_nothing_and_at_most_the_best(
    name: str, model: str, cores: float, gpus: int, distance: Distance, bandwidth_share: float
) -> None:
    profile = profiles(name)[model]
    found = speed(profile, cores, gpus, distance, bandwidth_share)
    assert 0 < found <= speed(profile, best_cores(profile, gpus), gpus) == 1.0
    assert found <= speed(profile, cores, gpus, distance)
    assert 0 < utilisation(profile, found) <= profile.peak_utilisation
