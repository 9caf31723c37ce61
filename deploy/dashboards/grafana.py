"""A dashboard as Grafana reads it. Only this module knows Grafana, by its own library."""

from __future__ import annotations

from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import common, stat, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    FieldColor,
    QueryVariable,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.dashboard import Row as RowPanel
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)

from deploy.dashboards.boards import Board, Chart, Choice, Number

_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_REFS: Final = "ABCDEFGH"  # Grafana's names of the queries of a panel


def json_of(board: Board) -> str:
    """The file of a dashboard; the same board gives the same bytes."""
    made = (
        Dashboard(board.title)
        .uid(board.uid)
        .description(board.says)
        .tags(["coda"])
        .time("now-6h", "now")
        .refresh("1m")
        .timezone("browser")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for choice in board.choices:
        made.with_variable(_variable(choice))
    ids = count(1)
    for row in board.rows:
        made.with_row(RowPanel(row.title).id(next(ids)))
        for panel in row.panels:
            made.with_panel((_number(panel) if isinstance(panel, Number) else _chart(panel)).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _variable(choice: Choice) -> QueryVariable:
    variable = (
        QueryVariable(choice.name)
        .label(choice.name.capitalize())
        .query(choice.values_of)
        .regex(choice.pattern)
        .datasource(_SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(choice.many)
        .include_all(choice.many)
    )
    return variable.all_value(".*") if choice.many else variable


def _number(number: Number) -> stat.Panel:
    steps = [Threshold(color="green" if number.good_from is None else "red")]
    if number.good_from is not None:
        steps.append(Threshold(value=number.good_from, color="green"))
    if number.bad_from is not None:
        steps.append(Threshold(value=number.bad_from, color="red"))
    return (
        stat.Panel()
        .title(number.title)
        .description(number.says)
        .datasource(_SOURCE)
        .unit(number.unit)
        .span(4)
        .height(4)
        .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .color_mode(kinds.BigValueColorMode.VALUE)
        .graph_mode(kinds.BigValueGraphMode.AREA)
        .with_target(Dataquery().expr(number.expr).datasource(_SOURCE).ref_id("A").range())
    )


def _chart(chart: Chart) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(chart.title)
        .description(chart.says)
        .datasource(_SOURCE)
        .unit(chart.unit)
        .min(0)
        .span(8)
        .height(8)
        .line_width(1)
        .fill_opacity(40 if chart.stacked else 8)
        .show_points(kinds.VisibilityMode.NEVER)
        .color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
        .legend(
            common.VizLegendOptions()
            .display_mode(kinds.LegendDisplayMode.LIST)
            .placement(kinds.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if chart.stacked:
        panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
    if chart.most is not None:
        panel.max(chart.most)
    for ref, (legend, expr) in zip(_REFS, chart.lines.items(), strict=False):
        panel.with_target(Dataquery().expr(expr).legend_format(legend).datasource(_SOURCE).ref_id(ref).range())
    return panel
