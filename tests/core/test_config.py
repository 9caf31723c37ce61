from __future__ import annotations

from typing import Any

import pytest

from coda.config import Level, PolicyConfig
from coda.errors import InvalidInput


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
        pytest.param({"unknown_category_cores": 0}, "must be 1 to 1024, got 0", id="cores"),
    ],
)
def test_refuses_values_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PolicyConfig(**fields)


def test_finds_a_level_by_its_name() -> None:
    config = PolicyConfig()
    assert [config.level_index(name) for name in ("rack", "node", "moon")] == [0, 1, None]
