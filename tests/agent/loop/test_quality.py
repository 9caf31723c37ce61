"""A small run of the benchmark of the agent's answers, so that it keeps working."""

from __future__ import annotations

import pytest

from agent_quality import groups, on_one_node, rows_of
from coda_lab.emulators.nvml.library import load_here
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from tests.agent.gpus.rig import built_library


async def test_jobs_of_one_node_are_tuned_and_compared_with_every_count(
    needs_gcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_here(built_library())
    monkeypatch.setenv(STATE_VARIABLE, "set by each node")
    cases = dict(groups(quick=True))["Table II"][:2]
    trials = sorted(await on_one_node([(case, 0) for case in cases], noise=0.01), key=lambda trial: trial.name)
    assert [(trial.name, trial.distance, trial.as_published, trial.limited) for trial in trials] == [
        ("Alexnet", 0, True, True),
        ("VGG16", 0, True, True),
    ]
    assert rows_of("x", trials, judged=True)[0].value == 1.0
