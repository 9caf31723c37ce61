"""`status.progress` and `spec.stopWhen`, read and written."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda.progress import Plateau, StopRule, TrainingProgress
from coda_kube.job_progress import progress_from_json, progress_json, stop_rule_from_json, stop_text

counts = st.integers(0, 10**15)
numbers = st.floats(-1e30, 1e30)


@given(
    st.builds(
        TrainingProgress,
        attempt=st.integers(1, 9),
        step=st.none() | counts,
        total_steps=st.none() | counts,
        epoch=st.none() | st.integers(0, 10**9).map(float),
        loss=st.none() | numbers,
        best_loss=st.none() | numbers,
        best_epoch=st.none() | counts,
        plateau=st.none() | st.builds(Plateau, loss=numbers, epoch=counts, epochs=counts, last_epoch=counts),
        saved_step=st.none() | counts,
        saved_s=st.sampled_from([0.0, 1.5e9]),
        changed_s=st.sampled_from([0.0, 1.5e9]),
        end_s=st.sampled_from([0.0, 1.5e9]),
        message=st.text(max_size=20),
    )
)
def test_progress_is_read_as_it_was_written(progress: TrainingProgress) -> None:
    assert progress_from_json({"progress": progress_json(progress)}) == progress


@pytest.mark.parametrize(
    "bad",
    [
        {"attempt": "1"},
        {"attempt": 1, "step": -1},
        {"attempt": 1, "step": True},
        {"attempt": 1, "loss": math.nan},
        {"attempt": 1, "loss": "low"},
        {"attempt": 1, "plateau": {"loss": 1.0}},
        {"attempt": 1, "plateau": 3},
        ["attempt"],
    ],
)
def test_what_cannot_be_is_refused_and_ends_no_job(bad: Any) -> None:
    with pytest.raises(InvalidInput, match=r"status\.progress cannot be read"):
        progress_from_json({"progress": bad})
    assert stop_text({"stopWhen": {"noImprovementEpochs": 1, "action": "Stop"}}, {"progress": bad}, 1) == ""


def test_a_rule_is_read_with_its_defaults() -> None:
    assert stop_rule_from_json({}) is None
    assert stop_rule_from_json({"stopWhen": {"noImprovementEpochs": 5}}) == StopRule(epochs=5, margin=0.001)


STATUS = {"progress": {"attempt": 2, "plateau": {"loss": 0.5, "epoch": 3, "epochs": 4, "lastEpoch": 7}}}


@pytest.mark.parametrize(
    ("rule", "attempt", "stops"),
    [
        pytest.param({"noImprovementEpochs": 4, "action": "Stop"}, 2, True, id="converged"),
        pytest.param({"noImprovementEpochs": 4, "action": "Advise"}, 2, False, id="it is only told"),
        pytest.param({"noImprovementEpochs": 4}, 2, False, id="to tell is the default"),
        pytest.param({"noImprovementEpochs": 5, "action": "Stop"}, 2, False, id="not yet"),
        pytest.param({"noImprovementEpochs": 4, "afterEpoch": 8, "action": "Stop"}, 2, False, id="too early"),
        pytest.param({"noImprovementEpochs": 4, "action": "Stop"}, 3, False, id="of an earlier attempt"),
        pytest.param(None, 2, False, id="no rule"),
    ],
)
def test_a_job_ends_by_its_own_rule_alone(rule: dict[str, Any] | None, attempt: int, stops: bool) -> None:
    assert bool(stop_text({"stopWhen": rule}, STATUS, attempt)) is stops
