"""What the tables say of what was measured, from numbers made up."""

from dataclasses import replace
from pathlib import Path

import pytest

from studies import ablations, eliminator, month, samples, traces
from studies.cells import Cell
from studies.scope import Found, Scope
from studies.wording import difference_text, interval_text, markdown_table
from studies.workloads import TRACES
from tests.benchmarks.studies.orders import cell

SCOPE = Scope(traces=None, quick=True, seeds=5, plots=Path("results"), version="coda 1")


def rows(**jct_by_policy: float) -> tuple[list[tuple[str, Cell]], Found]:
    found, named = {}, []
    for name, jct_s in jct_by_policy.items():
        policy = name.replace("_", "-")
        one = cell(policy=policy)
        named.append((policy, one))
        found[one.name] = {"gpu_jct_mean_s": jct_s, "gpu_wait_mean_s": jct_s}
    return named, Found(measures_by_name=found)


@pytest.mark.parametrize(
    ("values", "holds", "short"),
    [
        pytest.param({"coda": 99, "fifo_skip": 100}, True, "first", id="first"),
        pytest.param({"coda": 1029, "fifo_skip": 1000}, True, "within 2.9% of fifo-skip", id="within 3 %"),
        pytest.param({"coda": 1031, "fifo_skip": 1000}, False, "broken: 3.1% of fifo-skip", id="above 3 %"),
        pytest.param({"coda": 1000, "srtf": 10, "fifo_skip": 1000}, True, "first", id="bounds are no rivals"),
        pytest.param({"coda": 1000, "sjf": 1, "best_fit": 500}, False, "broken: 100.0% of best-fit", id="far off"),
    ],
)
def test_the_rule_of_mean_jct(values: dict[str, float], holds: bool, short: str) -> None:
    verdict = traces.verdict(*rows(**values), "mean JCT", "gpu_jct_mean_s")
    assert (verdict.holds, verdict.short) == (holds, short)
    assert ("BROKEN" in verdict.long) is not holds


def test_half_a_minute_of_waiting_is_no_defeat_but_of_a_jct_it_is() -> None:
    given = rows(coda=40, fifo_skip=11)
    assert traces.verdict(*given, "mean wait", "gpu_wait_mean_s").holds
    assert not traces.verdict(*given, "mean JCT", "gpu_jct_mean_s").holds


def test_columns_that_a_rival_wins_are_named_with_both_values() -> None:
    named, found = rows(coda=1000, fifo_skip=900, srtf=1)
    said = traces.winners(named, found)
    assert "JCT, mean (fifo-skip 900, coda 1,000)" in said
    assert "srtf" not in said
    assert traces.winners(*rows(coda=900, fifo_skip=900)).endswith(": none.")


def test_a_row_whose_run_failed_says_so_and_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / TRACES[0].file).touch()
    scope = replace(SCOPE, traces=tmp_path / "traces", plots=tmp_path / "results")
    there = {one.name: {"gpu_jct_mean_s": 5.0} for one in traces.cells(scope) if one.order.policy == "fifo-skip"}
    said = traces.text(scope, Found(measures_by_name=there))
    assert said.count("| coda | failed |") == 2
    assert "coda was not measured" in said
    assert said.count("| fifo-skip | - |") == 2
    assert f"Not there, so left out: {TRACES[1].file}" in said


def test_policies_are_compared_within_each_sample(tmp_path: Path) -> None:
    (tmp_path / TRACES[0].file).touch()
    scope = replace(SCOPE, traces=tmp_path)
    there = samples.cells(scope)
    chosen = [cell.order.source.selection.sample for cell in there[:2]]
    assert chosen == list(scope.usual_seeds)
    waits = {"fifo-skip": {11: 100.0, 12: 1000.0}, "coda": {11: 90.0, 12: 900.0}}
    found = {
        one.name: {"gpu_wait_mean_s": waits[one.order.policy][one.order.source.selection.sample]}
        for one in there
        if one.order.policy in waits
    }
    said = samples.text(scope, Found(measures_by_name=found))
    assert said.count("-10.0 ± 0.0") == 2
    assert "--sample 11" in said
    assert "| drf | - | - |" in said


def test_a_difference_within_its_interval_is_marked_and_pairs_have_the_same_seed() -> None:
    base = [10.0, 20.0, 30.0]
    assert difference_text([11.0, 21.0, 31.1], base, 1.0).startswith("+1.0 ± 0.1")
    assert "≈" not in difference_text([11.0, 21.0, 31.1], base, 1.0)
    assert difference_text([11.0, 19.0, 30.0], base, 1.0).endswith("≈")
    assert difference_text([None, None, None], base, 1.0) == "-"


def test_intervals_and_tables_are_written() -> None:
    assert interval_text([0.5], 100.0) == "50.0"
    assert interval_text([1.0, 1.0, 1.0], 100.0) == "100.0 ± 0.0"
    assert interval_text([1.0, None], 100.0) == "-"
    assert markdown_table(("a", "b"), [("1", "2")]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_every_part_is_left_out_alone_and_left_in_alone() -> None:
    rows = ablations.variants()
    none = rows["none of them"].without
    assert rows["coda"] == ablations.Variant()
    assert rows["without arrays"] == ablations.Variant(without=("arrays",))
    assert rows["only allocator"].without == tuple(sorted({*none} - {"allocator"}))
    assert not {"arrays", "borrowing"} & {*rows["only arrays and borrowing"].without}
    assert [title for title, row in rows.items() if row.promises and row.without == none] == ["only promises"]
    assert len(set(rows.values())) == len(rows)


def test_the_eliminators_factor_is_of_pairs() -> None:
    on, off = (eliminator.cells_of(without, title, SCOPE) for title, without in eliminator.ARMS)
    lost = {one.name: {"victim_lost_gpu_s": 100.0 * number, "gpu_util_all": 0.5} for number, one in enumerate(on, 1)}
    lost |= {one.name: {"victim_lost_gpu_s": 200.0 * number, "gpu_util_all": 0.4} for number, one in enumerate(off, 1)}
    said = eliminator.verdict(SCOPE, Found(measures_by_name=lost))
    assert "2.00 ± 0.00 times as much work, target >= 1.5: kept" in said
    assert "+10.00 points" in said
    lost[on[0].name] = {"victim_lost_gpu_s": 0.0, "gpu_util_all": 0.5}
    assert "no factor" in eliminator.verdict(SCOPE, Found(measures_by_name=lost))


def test_the_month_says_of_each_target_whether_it_is_kept() -> None:
    measures = {"gpu_util_queueing": 0.7, "gpu_active_queueing": 0.9, "fragmentation_cores": 0.005}
    measures |= {"cpu_started_3min": 0.93, "gpu_started_10s": 0.8, "pool_started_10s": 0.85}
    cells = month.cells(SCOPE)
    fifo = {one.name: {"gpu_util_queueing": 0.5} for one in month.cells_of(month.FIFO_ARM, SCOPE)}
    said = month.targets(SCOPE, Found(measures_by_name={one.name: measures for one in cells} | fifo))
    assert [sentence.rstrip(".").rpartition(" ")[2] for sentence in said] == [
        *("kept", "MISSED", "kept", "kept"),  # utilisation, held, idle for cores, CPU jobs
        *("kept", "MISSED"),  # against fifo-skip, against the pool
    ]
    assert all("not measured" in sentence for sentence in month.targets(SCOPE, Found(measures_by_name={})))


def test_cells_of_all_tables_have_names_and_orders_of_their_own() -> None:
    scope = replace(SCOPE, quick=False)
    for table in (month.TABLE, ablations.TABLE, eliminator.TABLE):
        cells = table.cells(scope)
        assert len({one.name for one in cells}) == len(cells)
