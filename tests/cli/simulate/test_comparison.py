from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from coda.policy import POLICIES
from coda_cli.simulate.comparison import OVERVIEW, show
from coda_sim.results.measure_names import MEASURE_BY_KEY, Unit
from coda_sim.results.summary import RunResult, Timing

HEAD: dict[str, Any] = {
    "workload": {"name": "coda-month", "rule": "all jobs", "profiles": "paper"},
    "cluster": "20x8x28,60x4x28",
    "costs": "paid",
    "resumable": 1.0,
}
TIMING = Timing(wall_s=1.0, cpu_s=1.0, peak_rss_bytes=2**20)
LARGE = {Unit.SHARE: 1.0, Unit.SPAN: 86_399.0, Unit.COUNT: 1e6, Unit.NUMBER: 399.99, Unit.UNIT_SECONDS: 1e7}


def result(policy: str, *, seed: int = 1, without: tuple[str, ...] = ()) -> RunResult:
    """Every measure is as large as it can reasonably be; seeds differ by a tenth."""
    metrics = {key: LARGE[measure.unit] * (1 if seed == 1 else 0.9) for key, measure in MEASURE_BY_KEY.items()}
    return RunResult(policy=policy, without=without, seed=seed, metrics=dict(metrics), timing=TIMING)


def shown(results: Sequence[RunResult], width: int, *, all_measures: bool = False) -> str:
    file = io.StringIO()
    show(results, HEAD, Console(file=file, width=width), all_measures=all_measures)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 140])
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("policies", [1, 2, 18])
@pytest.mark.parametrize("all_measures", [False, True])
def test_nothing_is_cut(width: int, seeds: int, policies: int, all_measures: bool) -> None:
    names = [*POLICIES][-policies:]
    results = [result(name, seed=seed) for name in names for seed in range(1, seeds + 1)]
    text = shown(results, width, all_measures=all_measures)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    measures = MEASURE_BY_KEY if all_measures else OVERVIEW
    assert width < 80 or all(re.search(rf"(?m)(^|\s){re.escape(word)}(\s|$)", text) for word in (*names, *measures))


def test_many_policies_are_rows_and_the_measures_that_matter_columns() -> None:
    lines = shown([result("coda"), result("coda", without=("allocator",)), result("drf")], 80).splitlines()
    rows = [line.split() for line in lines if line.startswith(("coda ", "drf "))]
    assert rows[0] == ["coda", "100.0%", "100.0%", "100.0%", "100.0%", *["23h59m"] * 3, "100.0%"]
    assert rows[-1][0] == "drf"
    assert any(line.startswith("allocator") for line in lines)  # the third line of "coda without allocator"
    assert "mean wait, GPU jobs        gpu_wait_mean_s      mean wait of GPU jobs" in "\n".join(lines)


def test_what_stops_cost_is_a_table_of_the_policies_that_stopped_a_job() -> None:
    stopping, other = result("coda"), result("drf")
    other.metrics.update(lost_gpu_s=0.0, lost_core_s=0.0, aborts=0, migrations=0, preemptions=0)
    lines = shown([stopping, other], 80).splitlines()
    after = next(number for number, line in enumerate(lines) if line.startswith("lost by stops"))
    rows = [line.split() for line in lines[after:] if line.startswith(("coda ", "drf "))]
    assert rows == [["coda", "2,777.8", "2,777.8", "1,000,000", "1,000,000", "1,000,000"]]
    assert "The other policies stopped no job." in lines
    stopping.metrics.update(other.metrics)
    assert "No policy stopped a job, so no work was lost." in shown([stopping, other], 80)


def test_several_seeds_show_the_interval_below_the_mean() -> None:
    results = [result(policy, seed=seed) for policy in ("coda", "drf") for seed in (1, 2)]
    lines = shown(results, 120).splitlines()
    assert lines[1] == "means over seeds 1, 2; ± is half the width of the 95 % interval"
    coda = next(number for number, line in enumerate(lines) if line.startswith("coda "))
    assert lines[coda].split()[1] == "95.0%"
    assert lines[coda + 1].split()[0] == "±63.5"


def test_one_policy_is_a_list_of_measures_with_their_keys() -> None:
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown([result("coda")], 80).splitlines()]
    assert ["measure", "coda", "key in summary.json"] in lines
    assert ["mean wait of GPU jobs", "23h 59m", "gpu_wait_mean_s"] in lines
    assert [f"--all-measures shows all {len(MEASURE_BY_KEY)} measures, --out FOLDER writes them to files."] in lines


def test_jobs_that_never_run_are_named_with_their_policies() -> None:
    lines = shown([result("coda"), result("drf"), result("fgd")], 200).splitlines()
    ends = "no measure of waits or completion times counts (jobs_refused)"
    assert f"Refused: 1,000,000 jobs that never run here and that {ends}." in lines
    some, one, none = result("coda", without=("borrowing",)), result("drf"), result("fgd")
    for run, refused in ((some, 250), (one, 1), (none, 0)):
        run.metrics["jobs_refused"] = refused
    lines = shown([some, one, none], 200).splitlines()
    assert [line for line in lines if line.startswith("Refused")] == [
        f"Refused under coda without borrowing: 250 jobs that never run here and that {ends}.",
        f"Refused under drf: 1 job that never runs here and that {ends}.",
    ]
    assert "efused" not in shown([none], 200)


def test_seeds_that_refuse_different_numbers_show_the_interval() -> None:
    runs = [result("coda", seed=1), result("coda", seed=2)]
    for run, refused in zip(runs, (2, 1), strict=True):
        run.metrics["jobs_refused"] = refused
    assert "Refused: 1.5 ±6.4 jobs that never run here" in shown(runs, 120)
