"""The recipe for Slurm: what `sacct` prints becomes a trace, and what has no run time is counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coda_sim.traces import JobKind, OnError, RecordedStatus, Trace, read_trace

SCRIPT = Path(__file__).parents[3] / "examples" / "traces" / "from_sacct.py"
HEADER = "JobID|User|Account|Submit|Start|End|ElapsedRaw|State|AllocTRES"
TRES = "billing=32,cpu=32,gres/gpu:a100=4,gres/gpu=4,mem=256G,node=1"
LINES = (
    f"123_4|ann|vision|2026-05-01T10:00:00|2026-05-01T10:10:00|2026-05-02T12:13:04|93784|COMPLETED|{TRES}",
    f"123_5|ann|vision|2026-05-01T10:00:00|2026-05-01T12:00:00|2026-05-01T13:00:00|3600|CANCELLED by 1234|{TRES}",
    "123_[6-9]|ann|vision|2026-05-01T10:00:00|Unknown|Unknown|0|PENDING|",
    f"124|bob|nlp|2026-05-01T09:00:00|2026-05-01T09:00:00|Unknown|60|RUNNING|{TRES}",
    f"124.batch||nlp|2026-05-01T09:00:00|2026-05-01T09:00:00|2026-05-01T10:00:00|60|COMPLETED|{TRES}",
    "125|bob|nlp|2026-05-01T09:00:00|None|2026-05-01T09:30:00|0|CANCELLED by 77|",
    "126|bo|nlp|2026-05-01T09:30:00|2026-05-01T09:30:00|2026-05-01T09:30:00|0|OUT_OF_MEMORY|cpu=4,mem=4096M,node=1",
    "127|eve|nlp|2026-05-02T00:00:00|2026-05-02T00:00:01|2026-05-02T00:01:01|60|TIMEOUT|"
    "cpu=16,gres/gpu:a100=8,gres/gpu:h100=8,mem=1T,node=2",
    "128|eve|nlp|2026-05-02T01:00:00|2026-05-02T01:00:01|Unknown|60|COMPLETED|cpu=1,node=1",
)


def converted(folder: Path, *lines: str, since: str = "") -> tuple[Trace, str]:
    words = [sys.executable, SCRIPT, *(("--since", since) if since else ())]
    done = subprocess.run(words, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    path = folder / "jobs.csv"
    path.write_text(done.stdout)
    return read_trace(path, on_error=OnError.REFUSE), done.stderr


def test_what_sacct_says_becomes_a_trace(tmp_path: Path) -> None:
    trace, said = converted(tmp_path, HEADER, *LINES)
    assert [(row.job_id, row.submit_s, row.duration_s, row.wait_s, row.status) for row in trace.rows] == [
        ("126", 34_200.0, 1.0, 0.0, RecordedStatus.FAILED),
        ("123_4", 36_000.0, 93_784.0, 600.0, RecordedStatus.PASSED),
        ("123_5", 36_000.0, 3_600.0, 7_200.0, RecordedStatus.KILLED),
        ("127", 86_400.0, 60.0, 1.0, RecordedStatus.TIMEOUT),
    ]
    cpu, first, _, large = trace.rows
    assert (cpu.kind, cpu.gpus, cpu.cpus, cpu.memory_gib) == (JobKind.CPU, 0, 4.0, 4.0)
    assert (first.user, first.virtual_cluster, first.gpus, first.cpus) == ("ann", "vision", 4, 32.0)
    assert (first.memory_gib, first.nodes_requested, first.kind) == (256.0, 1, JobKind.GPU)
    assert (large.gpus, large.memory_gib, large.nodes_requested) == (16, 1024.0, 2)
    assert said.splitlines() == [
        "4 jobs",
        "1 left out: state PENDING: it has not ended",
        "1 left out: state RUNNING: it has not ended",
        "1 left out: steps of jobs: use --allocations",
        "1 left out: it never started",
        "1 left out: no time of its end",
    ]


def test_a_run_time_in_words_will_do(tmp_path: Path) -> None:
    lines = [LINES[0].replace("|93784|", "|1-02:03:04|"), LINES[1].replace("|3600|", "|59:59|")]
    trace, _ = converted(tmp_path, HEADER.replace("ElapsedRaw", "Elapsed"), *lines)
    assert [row.duration_s for row in trace.rows] == [93_784.0, 3_599.0]


APRIL = (
    f"9|ann|vision|2026-04-02T10:00:00|2026-04-02T10:10:00|2026-05-01T20:10:00|2541600|COMPLETED|{TRES}",
    f"10|ann|vision|2026-04-30T23:00:00|2026-04-30T23:00:00|2026-05-01T00:30:00|5400|COMPLETED|{TRES}",
)


def test_jobs_that_ran_when_the_span_began_are_left_out(tmp_path: Path) -> None:
    """sacct lists them by their end: with weeks before the span, in which nothing else was submitted."""
    trace, said = converted(tmp_path, HEADER, *APRIL, *LINES[:2])
    assert [(row.job_id, row.submit_s) for row in trace.rows] == [("123_4", 36_000.0), ("123_5", 36_000.0)]
    assert "2 left out: submitted before 2026-05-01T00:00:00, the day of the first end (--since)" in said
    trace, said = converted(tmp_path, HEADER, *APRIL, *LINES[:2], since="2026-04-30")
    assert [row.job_id for row in trace.rows] == ["10", "123_4", "123_5"]
    assert "1 left out: submitted before 2026-04-30T00:00:00 (--since)" in said
    trace, _ = converted(tmp_path, HEADER, *APRIL, *LINES[:2], since="2026-04-01T08:00")
    assert len(trace.rows) == 4


@pytest.mark.parametrize(
    "line", ["128|eve|nlp", LINES[0].partition("gpu=4")[0] + "gpu=", LINES[0].partition("|93784")[0]]
)
def test_a_line_that_is_cut_off_is_counted(line: str, tmp_path: Path) -> None:
    trace, said = converted(tmp_path, HEADER, LINES[1], line)
    assert (len(trace.rows), said.splitlines()[1:]) == (1, ["1 left out: a line that is cut off"])


def test_another_list_of_columns_is_named() -> None:
    done = subprocess.run([sys.executable, SCRIPT], input="JobID|User\n", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sacct's header lacks Account, Submit, Start, End, State")


@pytest.mark.parametrize("word", ["--parsable2", "--allocations", "AllocTRES", "examples/traces/from_sacct.py"])
def test_the_page_says_how(word: str) -> None:
    assert word in (SCRIPT.parents[2] / "docs" / "own-traces.md").read_text()
