from __future__ import annotations

import pytest

from coda.allocator import NO_HINTS, Category, Hints, start_cores
from coda.config import PolicyConfig


@pytest.mark.parametrize(
    ("category", "hints", "gpus", "ceiling", "expected"),
    [
        pytest.param(Category.CV, NO_HINTS, 1, 96, 3, id="CV"),
        pytest.param(Category.NLP, NO_HINTS, 1, 96, 5, id="NLP"),
        pytest.param(Category.SPEECH, NO_HINTS, 1, 96, 5, id="speech"),
        pytest.param(None, NO_HINTS, 1, 96, 4, id="unknown"),
        pytest.param(Category.CV, Hints(many_weights=True), 1, 96, 2, id="VGG16: many weights"),
        pytest.param(Category.NLP, Hints(pipelined=True, many_weights=True), 1, 96, 3, id="Transformer: both"),
        pytest.param(Category.CV, Hints(complex_processing=True), 1, 96, 4, id="complex processing"),
        pytest.param(Category.NLP, NO_HINTS, 4, 96, 20, id="scaled by the GPUs of a rank"),
        pytest.param(Category.CV, Hints(complex_processing=True), 2, 96, 8, id="hints shift before scaling"),
        pytest.param(Category.NLP, NO_HINTS, 8, 28, 28, id="never above the ceiling"),
        pytest.param(Category.NLP, NO_HINTS, 8, 0, 1, id="never below one core"),
    ],
)
def test_proposes_the_first_cores(
    category: Category | None, hints: Hints, gpus: int, ceiling: int, expected: int
) -> None:
    assert start_cores(category, hints, gpus, ceiling) == expected


def test_the_guess_without_category_is_configuration() -> None:
    assert start_cores(None, NO_HINTS, 2, 96, config=PolicyConfig(unknown_category_cores=6)) == 12
