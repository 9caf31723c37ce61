"""Compiled and pure Python decide alike: the same study gives the same bytes. Run by `make compiled`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = (
    "--policy",
    "all",
    "--jobs",
    "1",
    "--limit",
    "150",
    "--max-duration",
    "6h",
    "--compress",
    "4",
    "--cluster",
    "2x4x28,1x0x32",
)

pytestmark = pytest.mark.skipif(os.environ.get("CODA_COMPILED") != "1", reason="for the compiled core: make compiled")


def study(folder: Path, *options: str, compiled: bool) -> Path:
    environ = {name: value for name, value in os.environ.items() if compiled or name != "PYTHONPATH"}
    command = [sys.executable, "-m", "coda_cli", "simulate", *STUDY, *options, "--out", str(folder)]
    subprocess.run(command, env=environ, check=True, capture_output=True)
    (mode,) = {run["compiled"] for run in json.loads((folder / "timing.json").read_text())["runs"]}
    assert mode is compiled
    return folder


@pytest.mark.parametrize("options", [(), ("--racks", "2", "--costs", "free", "--profiles", "steep", "--seed", "7")])
def test_a_study_of_all_policies_gives_the_same_bytes(options: tuple[str, ...], tmp_path: Path) -> None:
    compiled = study(tmp_path / "compiled", *options, compiled=True)
    pure = study(tmp_path / "pure", *options, compiled=False)
    files = sorted(path.relative_to(pure) for path in pure.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(compiled) for path in compiled.rglob("*") if path.is_file())
    assert sum(path.name == "jobs.csv.gz" for path in files) > 5
    for file in files:
        if file.name != "timing.json":
            assert (pure / file).read_bytes() == (compiled / file).read_bytes(), file
