from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared_gpu.node import Ran

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "real_sharing.py"
RAN = Ran(started_s=0, began_s=1, ended_s=(2, 3, 4, 6, 8, 10), losses=(), peak=0)


def test_rates_and_steps_are_of_the_time_that_is_asked_for() -> None:
    assert RAN.rate(2, 4) == 1.0
    assert RAN.rate(4, 10) == 0.5
    assert RAN.rate(20, 30) == 0.0
    assert RAN.step_s(0, 4) == 1.0
    assert RAN.settled_s == 2.0


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA GPU")
def test_a_machine_without_a_gpu_is_told_in_one_line() -> None:
    outcome = subprocess.run([sys.executable, str(SCRIPT), "dist"], capture_output=True, text=True, check=True)
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("No measurement: this machine has no NVIDIA GPU")
    assert outcome.stderr.count("\n") == 1


def test_an_experiment_that_does_not_exist_is_refused_with_those_that_do() -> None:
    outcome = subprocess.run([sys.executable, str(SCRIPT), "dist", "x"], capture_output=True, text=True, check=False)
    assert outcome.returncode == 2
    assert "same-losses" in outcome.stderr
