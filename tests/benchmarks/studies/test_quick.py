"""`make results QUICK=1` on a small trace: every table and plot is written, and a second run has nothing left to do."""

import csv
import gzip
import random
from pathlib import Path

import pytest

from coda_sim.traces.trace import COLUMNS
from results import PAGE, TABLES, main
from studies.page import BEGIN, END, check_page
from studies.workloads import TRACES
from tests.lengths import LONG

RUN = [table.name for table in TABLES if LONG or table.name != "ablations"]  # half of all cells are ablations


def write_trace(path: Path) -> None:
    draw = random.Random(7)
    with gzip.open(path, "wt", newline="") as text:
        lines = csv.writer(text)
        lines.writerow(COLUMNS)
        for number in range(40):
            gpus = draw.choice((0, 1, 8, 8))
            kind = "gpu" if gpus else "cpu"
            span = (60.0 * number, draw.randint(60, 3600))
            lines.writerow([f"hv{number}", "u1", "venus", *span, gpus, max(1, 5 * gpus), "", 1, "passed", kind])


@pytest.mark.heavy
def test_a_quick_run_writes_every_table_and_plot_and_the_next_one_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces").mkdir()
    write_trace(tmp_path / "traces" / TRACES[0].file)
    page = tmp_path / "results.md"
    page.write_text(f"# Results\n\n{BEGIN}\n{END}\n")
    words = ["--quick", "--jobs", "1", "--only", ",".join(RUN), "--traces", str(tmp_path / "traces")]
    words += ["--page", str(page), "--kept", str(tmp_path / "cells")]
    assert main(words) == 0, capsys.readouterr().err
    first = page.read_text()
    assert [f"<!-- table {name} -->" in first for name in RUN] == [True] * len(RUN)
    assert "| failed |" not in first
    assert "not measured" not in first
    assert "| - | - |" not in first.partition("### Sensitivity")[2].partition("### The eliminator")[0]
    plots = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    assert {f"results/{name}" in first for name in plots} == {True}
    assert "trace-venus-13d.svg" in plots
    assert max(map(len, plots.values())) < 60_000
    assert "kept from before" in capsys.readouterr().err
    assert main(words) == 0
    assert "0 simulations to run" in capsys.readouterr().err
    assert page.read_text() == first
    assert {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()} == plots


def test_what_cannot_be_done_is_said_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers")
    assert main(["--quick", "--page", str(page)]) == 2
    assert "the page needs the lines" in capsys.readouterr().err
    page.write_text(f"{BEGIN}\n{END}")
    assert main(["--quick", "--page", str(page), "--traces", str(tmp_path)]) == 2
    assert "there is none of helios_venus_mixed_13d.csv.gz" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--only", "no-such-table"])


def test_the_page_of_the_results_has_its_markers() -> None:
    check_page(PAGE.read_text())
