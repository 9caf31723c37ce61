"""The pacing of libcodagpu in virtual time: what a job gets of its speed alone, whatever its kernels look like."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from coda_lab.programs.gpu_library import source_folder

MODEL = Path(__file__).with_name("pacing.c")
STEADY = ("even", "transformer", "resnet", "lstm", "phases", "spread", "large", "long", "queued", "loader")


class Model:
    """See pacing.c."""

    def __init__(self, path: Path) -> None:
        self._path = path
        command = ["gcc", "-std=gnu11", "-O2", f"-I{source_folder()}", str(MODEL), "-lm", "-lpthread", "-o", str(path)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr

    def speeds(self, program: str, *events: str, busy: int = 0) -> list[float]:
        """The speed in each segment, as a part of that alone."""
        alone = float(self._says(program, 0, *(["slower"] if "slower" in events else []), "1000:60"))
        return [float(speed) / alone for speed in self._says(program, busy, *events).split()]

    def _says(self, program: str, busy: int, *events: str) -> str:
        words = [str(self._path), program, str(busy), *events]
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def model(needs_gcc: None, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("pacing") / "model")


@pytest.mark.parametrize("program", STEADY)
@pytest.mark.parametrize("share", [800, 500, 200, 50])
def test_a_job_gets_its_share(model: Model, program: str, share: int) -> None:
    """Charged by the cheapest launch, "large" got 94, 81, 52 and 19 %."""
    (speed,) = model.speeds(program, f"-{share}:40", f"{share}:120")
    assert abs(speed - share / 1000) < max(0.035, 0.1 * share / 1000)


def test_a_job_with_a_gpu_that_is_mostly_idle_is_slowed_down_less(model: Model) -> None:
    """Its GPU works for 9 % of the time."""
    (speed,) = model.speeds("starved", "-200:40", "200:120")
    assert 0.2 < speed < 0.5


@pytest.mark.parametrize("program", STEADY)
def test_a_minute_without_launches_is_not_paid_for(model: Model, program: str) -> None:
    """As while it writes a checkpoint. Charged half of the minute, it stood still for 10 minutes."""
    (speed,) = model.speeds(program, "-50:30", "stall", "50:10")
    assert speed > 0.03


@pytest.mark.parametrize("program", STEADY)
def test_a_minute_at_full_speed_is_not_paid_for(model: Model, program: str) -> None:
    first, later = model.speeds(program, "-50:30", "-1000:60", "50:10", "50:30")
    assert first > 0.02
    assert later < 0.09


@pytest.mark.parametrize("program", STEADY)
def test_full_speed_that_nobody_renews_ends(model: Model, program: str) -> None:
    """At the floor, and the time before it is not paid for."""
    full, after = model.speeds(program, "-200:30", "1000:60:20")
    assert full > 0.9
    assert 0.02 < after < 0.12


@pytest.mark.parametrize("program", STEADY)
def test_kernels_that_become_slower_are_soon_charged_for(model: Model, program: str) -> None:
    """A job whose batches grow. Charged by its cheapest launch, "spread" got 75 % of its speed alone for good."""
    later = model.speeds(program, "-300:60", "slower", "-300:20", "300:60")[0]
    assert later < 0.42


@pytest.mark.parametrize("program", ["even", "transformer", "resnet", "lstm", "phases", "spread"])
def test_a_busy_neighbour_is_not_paid_for(model: Model, program: str) -> None:
    """It runs for 90 % of the time, and halves the speed then. Without pauses the job would get 55 % alone."""
    (speed,) = model.speeds(program, "-500:10", "500:60", busy=900)
    assert 0.24 < speed < 0.42
