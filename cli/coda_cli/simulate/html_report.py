"""`report.html`: the comparison and the plots in one file that needs no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from coda.wording import counted
from coda_cli.simulate.comparison import comparison_of, title_of
from coda_sim.durations import duration_from_seconds
from coda_sim.results.measure_names import SECTIONS
from coda_sim.results.summary import RunResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #d8dee4; padding: .2rem .8rem; text-align: right; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
td:nth-child(2) { color: #59636e; font-family: ui-monospace, monospace; font-size: 13px; }
tr.section th { padding-top: 1rem; }
svg { display: block; height: auto; max-width: 100%; margin: 1.5rem 0; }
.wide { overflow-x: auto; }
"""
_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_IDS = re.compile(r'(\bid="|href="#|url\(#)')


def write_report(results: Sequence[RunResult], head: dict[str, Any], plots: Sequence[Path], path: Path) -> None:
    """Write the report; `plots` are drawn in the order given."""
    comparison = comparison_of(results)
    rows = [_row("th", "measure", "key in summary.json", comparison.titles)]
    for section, measures in SECTIONS:
        rows.append(f'<tr class="section"><th colspan="{len(comparison.titles) + 2}">{escape(section)}</th></tr>')
        rows += [_row("td", measure.name, measure.key, comparison.cells(measure)) for measure in measures]
    drawn = "\n".join(_inlined(plot, number) for number, plot in enumerate(plots))
    path.write_text(
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title_of(head))}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title_of(head))}</h1>\n{_facts(results, head)}\n"
        f'<div class="wide"><table>\n{chr(10).join(rows)}\n</table></div>\n{drawn}\n</html>\n',
        encoding="utf-8",
    )


def _facts(results: Sequence[RunResult], head: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, sorted({result.seed for result in results})))
    workload = head["workload"]
    several = "," in seeds
    means = "; means with half the width of the 95 % interval" if several else ""
    firsts = " The plots over time and of waits show each policy's first seed." if several else ""
    lines = [
        f"Seed{'s' if several else ''} {seeds}{means}.{firsts}",
        f"Measured from {duration_from_seconds(head['warmup_s'])} after the first submission to "
        f"{duration_from_seconds(head['drain_s'])} before the last.",
        f"{counted(workload['rows'], 'row')}, {workload['rows_left_out']} left out by the selection, "
        f"{counted(workload['durations_cut'], 'run time')} cut; "
        f"cores of rows without any: {workload['cores']}; profiles: {workload['profiles']}.",
        f"coda {head['version']}, configuration {head['config']}.",
    ]
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def _row(tag: str, name: str, key: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in (name, key, *cells)) + "</tr>"


def _inlined(plot: Path, number: int) -> str:
    """The drawing without its XML prologue, its ids made different from those of the other drawings."""
    drawing = _PROLOGUE.sub("", plot.read_text(encoding="utf-8"), count=1)
    return _IDS.sub(rf"\g<1>p{number}-", drawing)
