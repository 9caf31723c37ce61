from __future__ import annotations

from typing import Any

import pytest

from coda.allocator import CoreSearchConfig
from coda.contention import ContentionConfig
from coda.errors import InvalidInput
from coda.policy import Level, PolicyConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"levels": (Level("rack", "a"), Level("rack", "b"))}, "different names, got rack, rack", id="twice"
        ),
        pytest.param({"levels": (Level("rack", ""),)}, "needs a name and a node label", id="no label"),
        pytest.param({"bind_deadline_s": 0.0}, "bind_deadline_s must be above 0, got 0.0", id="no deadline"),
        pytest.param({"bind_deadline_s": float("nan")}, "bind_deadline_s must be above 0, got nan", id="not a number"),
        pytest.param({"refusal_holders": -1}, "refusal_holders must not be negative, got -1", id="holders"),
    ],
)
def test_refuses_values_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PolicyConfig(**fields)


def test_finds_a_level_by_its_name() -> None:
    config = PolicyConfig()
    assert [config.level_index(name) for name in ("rack", "node", "moon")] == [0, 1, None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"window_s": 0.0}, "window_s must be above 0, got 0.0", id="no window"),
        pytest.param({"window_s": float("nan")}, "window_s must be above 0, got nan", id="not a number"),
        pytest.param({"noise_margin": 1.0}, "noise_margin must be 0 to below 1, got 1.0", id="all is noise"),
        pytest.param({"patience": 9}, "patience must be 0 to 8, got 9", id="patience"),
        pytest.param({"faint_moves": -1}, "faint_moves must be 0 to 8, got -1", id="faint moves"),
        pytest.param({"extra_windows": 21}, "extra_windows must be 0 to 20, got 21", id="extra windows"),
        pytest.param({"least_samples": 1}, "least_samples must be 2 to 1000, got 1", id="one sample has no spread"),
    ],
)
def test_refuses_a_search_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        CoreSearchConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"release_share": 0.8}, "release_share must be below trigger_share, got 0.8", id="no hysteresis"),
        pytest.param({"window_s": float("nan")}, "window_s must be above 0, got nan", id="no window"),
        pytest.param({"drop_share": float("nan")}, "shares must be 0 to below 1", id="not a number"),
        pytest.param(
            {"votes": 6}, "votes must be 1 to windows, windows at most 60, got 6", id="more votes than windows"
        ),
        pytest.param({"step_s": 11.0}, "step_s <= settle_s < release_step_s, got 11.0", id="steps before they show"),
        pytest.param({"futile_s": -1.0}, "times must not be negative", id="negative time"),
    ],
)
def test_refuses_an_eliminator_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ContentionConfig(**fields)
