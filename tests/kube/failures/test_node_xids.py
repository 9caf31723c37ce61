"""How old the Xids of a NodeProfile are, whatever the clock of its node says."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.failures.node_xids import xids_from_json
from coda_kube.objects.quantities import time_from_seconds

WROTE_S = 5000.0


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param({"firstTime": 1000.0, "time": 4900.0}, (46_000.0, 49_900.0), id="repeated"),
        pytest.param({"time": 4900.0}, (49_900.0, 49_900.0), id="no first time: it came once"),
        pytest.param({"firstTime": 4950.0, "time": 4900.0}, (49_900.0, 49_900.0), id="the first after the last"),
        pytest.param({"firstTime": 4900.0, "time": 9000.0}, (45_900.0, 50_000.0), id="in the future"),
    ],
)
def test_both_times_are_as_old_as_the_agent_says(times: dict[str, float], expected: tuple[float, float]) -> None:
    entry: dict[str, Any] = {"gpu": "GPU-1", "xid": 79, "podUIDs": ["u"]}
    entry |= {name: time_from_seconds(value) for name, value in times.items()}
    profile = {"metadata": {"name": "n1"}, "status": {"time": time_from_seconds(WROTE_S), "xids": [entry]}}
    (found,) = xids_from_json(profile, 50_000.0)
    assert (found.first_s, found.time_s) == expected
    entry["firstTime"] = "x"
    assert xids_from_json(profile, 50_000.0) == ()
