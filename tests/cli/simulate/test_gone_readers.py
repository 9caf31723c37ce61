"""Who reads the standard output of a study may leave: its files are there all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = Path(__file__).parents[3] / "examples" / "traces" / "small.csv"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (
            ("--trace", str(SMALL), "--cluster", "4x8x48", "--policy", "arrival"),
            {"summary.json", "timing.json", "report.html", "jobs.csv.gz"},
        ),
        (("--sharing", "serial", "--workload", "job-sets"), {"summary.json"}),
    ],
    ids=["a trace", "sharing"],
)
def test_files_are_written_where_nobody_reads_what_is_printed(
    words: tuple[str, ...], names: set[str], tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "coda_cli", "simulate", *words, "--out", tmp_path / "out"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    assert "Traceback" not in done.stderr
    written = {path.name for path in (tmp_path / "out").iterdir() if path.stat().st_size}
    assert names <= written
