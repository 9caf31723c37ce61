"""A slice of a run begins with what ran at the moment, and goes on with what waited then and what came later."""

import csv
import gzip
import sys
from pathlib import Path

import pytest

from coda_sim.results.job_records import COLUMNS
from slice_of_run import main

AT_S, LEAD_S = 3600, 100.0


def line(job: str, submit_s: float, work_s: float, piece: str = "", start_s: float = 0, end_s: float = 0) -> list[str]:
    done_s = end_s - start_s
    asked = [job, "ana", "gpu", submit_s, work_s, 2, 4, 8]
    ran = [piece, 1, start_s, end_s, "node", 2, 4, 0, done_s, done_s, 1] if piece else [""] * 11
    return [str(value) for value in (*asked, *ran, 1)]


def test_a_slice_has_the_load_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = line("runs", 0, 2000, "1", AT_S - 500, AT_S + 1500)
    lines = [
        line("over", 0, 400, "1", 0, 400),
        line("never", 10, 70),
        runs,
        runs,  # on its second node
        line("waits", AT_S - 200, 300, "1", AT_S + 700, AT_S + 1000),
        line("stopped", 5, 1000, "1", 100, 300),
        line("stopped", 5, 1000, "2", AT_S + 100, AT_S + 900),
        line("later", AT_S + 50, 60, "1", AT_S + 50, AT_S + 110),
        line("last", AT_S + 60, 60, "1", AT_S + 60, AT_S + 120),
    ]
    records = tmp_path / "jobs.csv.gz"
    with gzip.open(records, "wt", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *lines])
    words = ["slice_of_run.py", str(records), "--at-h", "1", "--jobs", "4", "--lead-s", str(LEAD_S)]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    said = capsys.readouterr()
    rows = csv.DictReader(said.out.splitlines())
    found = [(row["job_id"], float(row["submit_s"]), float(row["duration_s"])) for row in rows]
    assert found == [
        ("runs", 0, 1500 + LEAD_S),
        ("stopped", LEAD_S, 800),
        ("never", LEAD_S, 70),
        ("waits", LEAD_S, 300),
        ("later", LEAD_S + 50, 60),
    ]
    assert said.err == "1 jobs that ran, 4 that waited or came later\n"
