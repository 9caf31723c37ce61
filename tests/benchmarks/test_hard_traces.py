"""The families are the same for the same seed, the rule is that of docs/results.md, and the benchmark answers."""

import json
import sys
from pathlib import Path

import pytest

import hard_traces
from coda_sim.workload import WorkloadSource, load
from coda_sim.workload.cluster_shape import shape_from_argument
from rig.asking import ask
from rig.families import FAMILIES, write_trace


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_gives_one_trace_whose_jobs_all_fit_the_familys_cluster(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    jobs = family.trace(1)
    assert jobs == family.trace(1) != family.trace(2)
    trace = tmp_path / "trace.csv"
    write_trace(jobs, trace)
    found = load(WorkloadSource(trace=trace), shape_from_argument(family.cluster), seed=1)
    assert (len(found.gangs), found.refused, found.rows_skipped) == (len(jobs), (), 0)


@pytest.mark.parametrize(
    ("means", "behind"),
    [
        ({"coda": 900.0, "fgd": 1000.0, "drf": 2000.0}, [("coda", "fgd", 0.0)]),
        ({"coda": 2000.0, "fgd": 1000.0, "drf": 2000.0}, [("coda", "fgd", 100.0)]),
        ({"coda": 30.0, "fgd": 0.0}, [("coda", "fgd", 0.0)]),
        ({"coda": 31.0, "fgd": 0.0}, [("coda", "fgd", 3100.0)]),
        ({"coda": 1000.0, "srtf": 1.0}, []),
        ({"coda": 1000.0, "arrival": 500.0}, []),
        ({"arrival": 1500.0, "fifo-skip": 1000.0}, [("arrival", "fifo-skip", 50.0)]),
    ],
    ids=["first", "behind", "a moment", "more than it", "a bound", "arrival is no rival", "arrival"],
)
def test_the_rule(means: dict[str, float], behind: list[tuple[str, str, float]]) -> None:
    assert [one[:3] for one in hard_traces.judged(means, is_wait=True)] == behind


def test_completion_times_have_no_moment() -> None:
    (one,) = hard_traces.judged({"coda": 110.0, "drf": 100.0}, is_wait=False)
    assert one.behind == pytest.approx(10)


def test_jobs_that_never_ran_are_rows_that_miss_their_budget() -> None:
    rows = list(hard_traces.rows_of("cpumix 1", {"refused": {"coda": 250.0}}))
    assert [(row.name, row.value, row.budget) for row in rows] == [
        ("cpumix 1: jobs that never ran, coda", 250.0, "<= 0")
    ]


def test_quick_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "answer.json"
    monkeypatch.setattr(sys, "argv", ["hard_traces.py", "--quick", "--out", str(out)])
    assert ask(hard_traces.__doc__, hard_traces.answer, more=hard_traces._more) == 0
    rows = {row["name"]: row for row in json.loads(out.read_bytes())["rows"]}
    assert {name.split(":")[0] for name in rows} == {"allcpu 1", "gangs 1"}
    assert rows["gangs 1: mean GPU JCT, coda"]["value"] > 0
    assert rows["gangs 1: mean GPU wait, coda behind fifo-skip"]["budget"] == "<= 3"
    assert rows["gangs 1: mean GPU wait, arrival behind fifo-skip"]["budget"] == "<= 1"
    assert "allcpu 1: mean CPU wait, arrival" in rows


@pytest.mark.parametrize("words", [["--family", "none"], ["--policy", "none"]])
def test_what_is_not_there_is_said(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hard_traces.py", *words])
    assert ask(hard_traces.__doc__, hard_traces.answer, more=hard_traces._more) == 1
    assert "'none'" in capsys.readouterr().err
