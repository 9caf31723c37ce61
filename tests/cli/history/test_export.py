"""`coda history export`: what the store keeps is a trace that the simulator reads, and the same jobs."""

from __future__ import annotations

import csv
import json
import time
import tracemalloc
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from coda.history import Ending, FinishedJob
from coda_operator.history.store import Store
from coda_sim.traces import JobKind, OnError, RecordedStatus, read_trace
from tests.cli.history.test_commands import run
from tests.operator_tests.history.records import record


def store_of(folder: Path, *jobs: FinishedJob) -> Path:
    path = folder / "history.sqlite"
    store = Store(URL.create("sqlite", database=str(path)))
    store.migrate()
    store.write(jobs)
    store.close()
    return path


def test_an_exported_history_is_a_trace_that_the_simulator_runs(tmp_path: Path) -> None:
    jobs = (
        record(1, owner='an"n,\n', lost_s=600.0, reason="Completed"),
        record(2, cores_asked=4, ending=Ending.FAILED, reason="DeadlineExceeded", waits=(("NotRecorded", 0.0),)),
        record(0, replicas=1, gpus_per_replica=2, cores_given=0, ending=Ending.DELETED, reason="Deleted"),
        record(3, held_s=0.0, run_s=0.0),
    )
    store = store_of(tmp_path, *jobs)
    trace = tmp_path / "trace.csv"
    code, printed, said = run("history", "export", "--since", "all", "--history", store, "--out", trace)
    assert (code, printed, said) == (0, "", "3 jobs written; 1 job without GPUs left out\n")
    assert run("history", "export", "--since", "all", "--history", store)[1] == trace.read_text()
    found = read_trace(trace, on_error=OnError.REFUSE)
    assert (found.bad, found.was_sorted) == ((), True)
    first, second, third = found.rows
    assert (first.job_id, first.submit_s, first.gpus, first.cpus) == ("uid-0", 0.0, 2, None)
    assert (first.status, first.kind, first.nodes_requested) == (RecordedStatus.KILLED, JobKind.GPU, 1)
    assert (second.submit_s, second.duration_s, second.gpus, second.cpus) == (100.0, 3000.0, 16, 48.0)
    assert (second.user, second.virtual_cluster, second.wait_s) == ('an"n,', "team-1", 90.0)
    assert (second.status, second.nodes_requested) == (RecordedStatus.PASSED, 2)
    assert (third.cpus, third.status, third.wait_s) == (8.0, RecordedStatus.TIMEOUT, None)
    words = ("--trace", trace, "--cluster", "4x8x64", "--profiles", "recorded", "--out", tmp_path / "out")
    assert run("simulate", *words)[0] == 0
    (simulated,) = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]
    assert simulated["metrics"]["jobs_finished"] == 3


def test_an_exported_history_comes_back_as_it_was(tmp_path: Path) -> None:
    store = store_of(tmp_path, record(1, replicas=2, gpus_per_replica=4, cores_asked=8))
    trace = tmp_path / "trace.csv"
    assert run("history", "export", "--since", "all", "--history", store, "--out", trace)[0] == 0
    assert run("history", "import", trace, "--history", tmp_path / "other.sqlite")[0] == 0
    again = run("history", "export", "--history", tmp_path / "other.sqlite")[1]
    (before,), (after,) = (csv.DictReader(text.splitlines()) for text in (trace.read_text(), again))
    moved = ("job_id", "virtual_cluster")  # the store gives names of its own
    assert {key: value for key, value in after.items() if key not in moved} == {
        key: value for key, value in before.items() if key not in moved
    }


def test_a_job_is_one_line_whatever_its_uid_says(tmp_path: Path) -> None:
    """Neither Kubernetes nor `coda history import` writes such a uid; Python 3.11 leaves its line break unquoted."""
    store = store_of(tmp_path, record(1, uid="a\nb\rc"), record(2, uid='d,"e'))
    trace = tmp_path / "trace.csv"
    assert run("history", "export", "--since", "all", "--history", store, "--out", trace)[0] == 0
    assert [row.job_id for row in read_trace(trace, on_error=OnError.REFUSE).rows] == ["a b c", 'd,"e']


def test_jobs_that_were_submitted_before_the_span_are_left_out(tmp_path: Path) -> None:
    """The store has them by their end: the trace would begin with weeks in which nothing else was submitted."""
    now_s, day_s = time.time(), 86_400.0
    old = record(1, queued_s=now_s - 90 * day_s, ended_s=now_s - 29 * day_s)
    jobs = [record(n, queued_s=now_s - n * day_s, ended_s=now_s - n * day_s + 7200) for n in (2, 3)]
    code, printed, said = run("history", "export", "--since", "30d", "--history", store_of(tmp_path, old, *jobs))
    assert (code, [row["job_id"] for row in csv.DictReader(printed.splitlines())]) == (0, ["uid-3", "uid-2"])
    assert said == "2 jobs written; 1 job left out that ended within --since 30d and was submitted before\n"
    store = tmp_path / "history.sqlite"
    assert len(run("history", "export", "--since", "all", "--history", store)[1].splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--since", "1ms"), "--since 1ms: no job that had its GPUs has ended since then; all takes everything"),
        (("--since", "soon"), "'soon' is not a duration"),
        (("--out", "/proc/nowhere"), "--out /proc/nowhere: cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    code, printed, said = run("history", "export", "--history", store_of(tmp_path, record(1)), *words)
    assert (code, printed, sentence in said) == (2, "", True)


def test_an_export_has_little_of_each_job_in_memory(tmp_path: Path) -> None:
    """All jobs are put in order, so a part of each must be there: a line of the trace, not the whole record."""
    peaks = []
    for count in (600, 2600):
        (tmp_path / str(count)).mkdir()
        store = store_of(tmp_path / str(count), *(record(n, name=f"{n}-" + 200 * "n") for n in range(count)))
        words = ("history", "export", "--since", "all", "--history", store, "--out", tmp_path / "trace.csv")
        run(*words)  # what is loaded once
        tracemalloc.start()
        assert run(*words)[0] == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 2000 < 1000.0, peaks
