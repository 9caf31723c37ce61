"""What a simulated pod does to its machine, from its annotations and its job's category."""

from __future__ import annotations

import pytest

from coda.allocator import Category
from coda.errors import InvalidInput
from coda_lab.emulators.load import Trainer
from coda_lab.machines.pod_loads import MODEL_BY_CATEGORY, PREFIX, PodLoad, load_of


def noted(notes: dict[str, str], gpus: int = 1, limit_cores: float | None = 4.0, category: str = "") -> PodLoad:
    annotations = {PREFIX + name.replace("_", "-"): text for name, text in notes.items()}
    return load_of(annotations, gpus=gpus, limit_cores=limit_cores, category=category)


def load(gpus: int = 1, limit_cores: float | None = 4.0, category: str = "", **notes: str) -> PodLoad:
    return noted(notes, gpus, limit_cores, category)


def test_every_category_has_a_model() -> None:
    assert set(MODEL_BY_CATEGORY) == {"", *(category.value for category in Category)}
    for category in MODEL_BY_CATEGORY:
        assert load(category=category).trainer is not None


def test_more_gpus_need_more_cores_and_traffic() -> None:
    one, four = load(category="CV"), load(gpus=4, category="CV")
    assert (one.demand_cores, four.demand_cores) == (4, 14)  # Alexnet
    assert (one.bytes_per_s, four.bytes_per_s) == (12e9, 48e9)


def test_annotations_win_over_the_model() -> None:
    found = load(
        model="BAT", cores_needed="9", best_utilization="0.5", noise="0.03", bandwidth_weight="0.2", gb_per_second="7"
    )
    assert found.trainer == Trainer(best=0.5, cores_needed=9, bandwidth_weight=0.2, noise=0.03)
    assert (found.demand_cores, found.bytes_per_s) == (9, 7e9)


def test_a_pod_without_gpus_uses_its_limit_and_moves_nothing_unless_told() -> None:
    assert load(gpus=0, limit_cores=6) == PodLoad(demand_cores=6, bytes_per_s=0, trainer=None)
    assert load(gpus=0, limit_cores=None).demand_cores == 1
    told = load(gpus=0, cores="3", gb_per_second="200", socket="1")
    assert told == PodLoad(demand_cores=3, bytes_per_s=200e9, trainer=None, socket=1)


@pytest.mark.parametrize(
    ("notes", "sentence"),
    [
        ({"nosie": "0.1"}, "nosie is unknown"),
        ({"model": "GPT"}, "model is 'GPT': give one of Alexnet"),
        ({"noise": "much"}, "noise is 'much': give a number from 0 to 1"),
        ({"noise": "nan"}, "give a number"),
        ({"cores_needed": "0"}, "from 0.1"),
        ({"best_utilization": "1.2"}, "to 1"),
        ({"gb_per_second": "-1"}, "from 0"),
        ({"socket": "0.5"}, "socket"),
    ],
)
def test_what_is_no_load_is_refused_by_name(notes: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        noted(notes)
