"""A short race with a fixed seed, as a user starts it, under one scheduler and two: all ends, nothing by halves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.host.processes import python_path
from tests.e2e.test_chaos import left_in

pytestmark = pytest.mark.e2e

GANGS = 12
SHAPE = ("--gangs", str(GANGS), "--nodes", "8", "--longest-run", "4", "--seed", "3")


@pytest.mark.parametrize("schedulers", ["one", "two"])
def test_every_gang_runs_whole_and_nothing_of_the_race_is_left(tmp_path: Path, schedulers: str) -> None:
    out = tmp_path / "report.json"
    words = (*SHAPE, "--schedulers", schedulers, "--out", str(out))
    ended = subprocess.run(
        [sys.executable, "-m", "coda_lab.experiments.race", *words],
        env=os.environ | {"PYTHONPATH": python_path(), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stdout
    report = json.loads(out.read_text())
    assert (report["passed"], report["problems"], report["schedulers"]) == (True, [], schedulers)
    gangs, attempts = report["gangs"], report["attempts"]
    assert (gangs["submitted"], gangs["succeeded"]) == (GANGS, GANGS)
    assert attempts["whole"] >= GANGS  # a retry is legitimate: on a busy machine a gang may miss its start deadline
    assert attempts["with_pods"] == attempts["whole"] + attempts["rolled_back"]
    assert report["foreign_pods"]["submitted"] > GANGS
    if schedulers == "one":
        assert report["refused_pods"] == {"gangs": {}, "foreign": {}}
        assert attempts["hit_by_a_refusal"] == 0
    assert left_in(tmp_path) == []
