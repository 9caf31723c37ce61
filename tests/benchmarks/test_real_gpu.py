from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from real_gpu import Compared, percents

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "real_gpu.py"


def test_what_nvidia_smi_prints_besides_numbers_does_not_count() -> None:
    assert percents(["50", " 49", "[N/A]", "", "5%", "100"]) == [50.0, 49.0, 100.0]


def test_points_are_the_distance_of_the_two_means() -> None:
    row = Compared(duty=50, agent=48.5, nvidia_smi=50.0, agent_samples=9, nvidia_smi_samples=9)
    assert row.points == pytest.approx(1.5)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA GPU")
def test_a_machine_without_a_gpu_is_told_in_one_line() -> None:
    outcome = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    assert outcome.stdout == ""
    assert outcome.stderr == "No measurement: this machine has no nvidia-smi, so no NVIDIA GPU\n"
