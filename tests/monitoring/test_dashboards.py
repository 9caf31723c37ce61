"""The dashboards in the chart are what their source makes, and ask only for metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.dashboards.__main__ import BOARDS
from deploy.dashboards.boards import Board, Chart
from deploy.dashboards.grafana import json_of
from deploy.dashboards.page import page_of
from tests.monitoring.expressions import DASHBOARDS, alerts, kinds, metrics_in, plain, program
from tests.surface.sources import ROOT

PAGE = ROOT / "docs" / "dashboards.md"
WIDTH = 24  # columns of Grafana's grid


def test_the_files_are_up_to_date() -> None:
    written = {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    assert written == {f"{board.uid}.json": json_of(board) for board in BOARDS}, "run `make dashboards`"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_dashboard_asks_only_for_metrics_that_exist(board: Board) -> None:
    assert asked_by(board) <= kinds().keys()


def test_every_metric_is_on_a_dashboard_or_in_an_alert() -> None:
    asked = {name for rule in alerts() for name in metrics_in(rule["expr"])}
    assert asked.union(*map(asked_by, BOARDS)) == kinds().keys()


def test_every_expression_has_found_samples() -> None:
    """`make dashboard-pictures` writes the page, from a real Prometheus."""
    rows = re.findall(r"^\| .* \| `(.*)` \| (\d+) \|$", PAGE.read_text(), flags=re.MULTILINE)
    samples = {expr.replace("\\|", "|"): int(count) for expr, count in rows}
    asked = [expr for board in BOARDS for expr in board.expressions]
    assert samples.keys() == set(asked), "run `make dashboard-pictures`"
    assert page_of(BOARDS, samples) == PAGE.read_text(), "run `make dashboard-pictures`"
    assert [expr for expr, count in samples.items() if count == 0] == []


def asked_by(board: Board) -> set[str]:
    expressions = (*board.expressions, *(choice.values_of for choice in board.choices))
    return {name for expr in expressions for name in metrics_in(expr)}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_panel_says_what_it_shows_and_stands_on_the_grid(board: Board) -> None:
    shown = json.loads(json_of(board))["panels"]
    panels = [panel for row in board.rows for panel in row.panels]
    assert [one["title"] for one in shown if one["type"] != "row"] == [panel.title for panel in panels]
    assert [one["description"] for one in shown if one["type"] != "row"] == [panel.says for panel in panels]
    assert all(panel.says.endswith(".") for panel in panels)
    charts = [len(panel.lines) for panel in panels if isinstance(panel, Chart)]
    assert charts == [len(one["targets"]) for one in shown if one["type"] == "timeseries"]
    assert [one["id"] for one in shown] == list(range(1, len(shown) + 1))
    taken = set[tuple[int, int]]()
    for one in shown:
        place = one["gridPos"]
        cells = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert place["x"] + place["w"] <= WIDTH
        assert not cells & taken, one["title"]
        taken |= cells


def test_a_leader_too_few_or_too_many_is_red() -> None:
    (board,) = (board for board in BOARDS if board.uid == "coda-itself")
    shown = {one["title"]: one for one in json.loads(json_of(board))["panels"]}
    for title in ("Planners", "Operators"):
        steps = shown[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]
        color_of = {value: [s["color"] for s in steps if (s["value"] or 0) <= value][-1] for value in (0, 1, 2)}
        assert color_of == {0: "red", 1: "green", 2: "red"}


def test_nothing_of_tenants_is_stacked() -> None:
    """A tenant counts what those below it hold, so their lines are no parts of a whole."""
    panels = [panel for board in BOARDS for row in board.rows for panel in row.panels]
    stacked = [panel for panel in panels if isinstance(panel, Chart) and panel.stacked]
    of_tenants = [panel.title for panel in stacked if any("coda_tenant_" in expr for expr in panel.lines.values())]
    assert (bool(stacked), of_tenants) == (True, [])


def test_every_expression_is_promql(tmp_path: Path) -> None:
    """As recording rules: the chosen values stand for the variables."""
    rules = [
        {"record": f"rule_{number}", "expr": plain(expr)}
        for number, expr in enumerate(expr for board in BOARDS for expr in board.expressions)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    ended = subprocess.run([program("promtool"), "check", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not re.search(r"\$", file.read_text())
