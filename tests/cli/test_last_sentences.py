"""What ends the command itself, whichever it is: a library that is missing, a disk that is full, a reader who left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coda_cli.__main__ import command_line

MISSING = "import sys; sys.modules['typer'] = None; from coda_cli.__main__ import main; main()"
FULL = Path("/dev/full")


def ended(*words: str, stdout: int, code: str = "") -> subprocess.CompletedProcess[str]:
    program = ["-c", code] if code else ["-m", "coda_cli"]
    command = [sys.executable, *program, *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def test_a_command_without_its_libraries_says_how_to_install_them() -> None:
    done = ended("version", stdout=subprocess.DEVNULL, code=MISSING)
    assert done.stderr.startswith("coda: typer is missing: install the wheel with its extra")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 1


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("completion", "bash")], ids=lambda words: words[0])
def test_a_full_disk_is_one_sentence(words: tuple[str, ...]) -> None:
    """Help is written at once; a short text when the process ends."""
    with FULL.open("wb") as full:
        done = ended(*words, stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, "coda: reading or writing: No space left on device\n")


@pytest.mark.parametrize("words", [("--help",), ("--version",)], ids=lambda words: words[0])
def test_a_reader_who_left_hears_nothing(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = ended(*words, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_output_that_is_closed_is_no_error() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m coda_cli --version >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words", [("--limit", "1"), ("--sharing", "serial", "--workload", "job-sets")], ids=["a trace", "sharing"]
)
def test_a_folder_without_a_name_is_not_the_current_one(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command_line(), ["simulate", *words, "--out", ""])
    assert (result.exit_code, "is empty: name a folder" in result.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []
