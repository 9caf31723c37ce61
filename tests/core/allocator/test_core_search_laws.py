"""Laws of the allocator's search over any utilisation whatever, and of what it remembers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.allocator import CoreSearch, CoreSearchConfig, SearchOutcome, SearchResult
from coda.allocator.config import Stride
from coda.allocator.core_search import CoreLimits, begin_search, next_search, refuse
from coda.allocator.curve import WindowReading
from coda.errors import InvalidInput
from coda_kube.objects.dataclass_json import plain_from_value, value_from_plain

MOST = 32

law = settings(deadline=None)

configs = st.builds(
    CoreSearchConfig,
    stride=st.sampled_from(Stride),
    patience=st.integers(0, 3),
    faint_moves=st.integers(0, 3),
    extra_windows=st.integers(0, 3),
    silent_windows=st.integers(0, 3),
)
readings = st.none() | st.builds(WindowReading, share=st.floats(0, 1), variance=st.sampled_from((0.0, 0.0, 1e-5, 1e-2)))
curves = st.lists(st.floats(0.05, 1), min_size=MOST, max_size=MOST)


@st.composite
def walks(draw: st.DrawFn) -> tuple[list[CoreSearch], SearchResult, CoreLimits]:
    """A whole search among any readings and refusals: its states and its answer."""
    limits = CoreLimits(least=draw(st.integers(1, 3)), most=draw(st.integers(3, MOST)))
    config = draw(configs)
    step: CoreSearch | SearchResult = begin_search(draw(st.integers(1, 40)), draw(st.integers(1, 8)), limits)
    states = []
    while isinstance(step, CoreSearch):
        states.append(step)
        refused = draw(st.integers(0, 9)) == 0
        step = refuse(step, limits, config) if refused else next_search(step, draw(readings), limits, config)
    return states, step, limits


@law
@given(walks())
def test_every_search_ends_within_the_limits(walk: tuple[list[CoreSearch], SearchResult, CoreLimits]) -> None:
    states, answer, limits = walk
    assert all(limits.least <= state.trying <= limits.most for state in states)
    assert limits.least <= answer.cores <= limits.most
    assert len(states) <= (MOST + 1) * 8 * 4


@law
@given(walks())
def test_a_search_goes_on_from_what_was_written_down(walk: tuple[list[CoreSearch], SearchResult, CoreLimits]) -> None:
    states, _answer, _limits = walk
    for state in states:
        assert value_from_plain(CoreSearch, json.loads(json.dumps(plain_from_value(state)))) == state


@law
@given(curves, st.integers(1, MOST), st.integers(1, 8), st.sampled_from(Stride))
def test_the_answer_loses_at_most_two_margins_against_the_best_count_measured(
    curve: list[float], start: int, gpus: int, stride: Stride
) -> None:
    config, limits = CoreSearchConfig(stride=stride), CoreLimits(most=MOST)
    step: CoreSearch | SearchResult = begin_search(start, gpus, limits)
    while isinstance(step, CoreSearch):
        step = next_search(step, WindowReading(share=curve[step.trying - 1]), limits, config)
    best = max(point.share for point in step.curve)
    chosen = next(point.share for point in step.curve if point.cores == step.cores)
    if step.outcome is SearchOutcome.FOUND:
        assert chosen >= best * (1 - config.noise_margin) ** 2 - 1e-9


@law
@given(st.integers(1, MOST), st.integers(1, MOST), st.integers(1, 8))
def test_a_flat_topped_curve_ends_at_its_edge(edge: int, start: int, gpus: int) -> None:
    limits, config = CoreLimits(most=MOST), CoreSearchConfig(noise_margin=0.001)
    step: CoreSearch | SearchResult = begin_search(start, gpus, limits)
    while isinstance(step, CoreSearch):
        step = next_search(step, WindowReading(share=0.9 * min(1.0, step.trying / edge)), limits, config)
    assert step.cores == edge


GOOD: dict[str, Any] = {
    "start": 4,
    "gpus": 1,
    "leg": "Down",
    "trying": 3,
    "kept": 4,
    "curve": [{"cores": 4, "share": 0.5, "variance": 0, "windows": 1}],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"leg": "Sideways"}, "Search.leg must be one of Start, Down, Up, Narrow", id="unknown leg"),
        pytest.param({"trying": "3"}, "Search.trying must be int, got '3'", id="text for a number"),
        pytest.param({"trying": True}, "Search.trying must be int, got True", id="truth for a number"),
        pytest.param({"trying": 0}, "at least one core", id="no core"),
        pytest.param({"failed": 4}, "what failed lies below", id="failed above kept"),
        pytest.param({"moves": -1}, "counts from 0", id="negative count"),
        pytest.param({"kept": 3, "leg": "Up"}, "cannot keep 3 cores", id="keeps what was never measured"),
        pytest.param({"curve": {}}, "Search.curve must be a list", id="curve is no list"),
        pytest.param({"curve": GOOD["curve"] * 2}, "each core count once", id="a count twice"),
        pytest.param({"curve": [{"cores": 4, "share": 2}]}, "must be 0 to 1, got 2", id="busier than busy"),
        pytest.param({"curve": [{"cores": 4}]}, "incomplete", id="a point without share"),
        pytest.param({"curve": [{"cores": 4, "share": float("nan")}]}, "must be float, got nan", id="not a number"),
        pytest.param({"colour": 1}, "Search has no colour", id="unknown field"),
    ],
)
def test_a_state_that_no_search_can_be_in_is_refused(change: dict[str, Any], message: str) -> None:
    assert value_from_plain(CoreSearch, GOOD).trying == 3
    with pytest.raises(InvalidInput, match=message):
        value_from_plain(CoreSearch, {**GOOD, **change})


@pytest.mark.parametrize("garbage", [None, [], "Down", 3])
def test_what_is_no_mapping_is_refused(garbage: object) -> None:
    with pytest.raises(InvalidInput, match="Search must be a mapping"):
        value_from_plain(CoreSearch, garbage)
