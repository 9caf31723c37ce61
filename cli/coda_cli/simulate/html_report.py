"""`report.html`: the comparison and the plots in one file that needs no other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from coda.wording import counted
from coda_cli.simulate.comparison import (
    assumed_speeds,
    comparison_of,
    empty_measures,
    refused_jobs,
    same_jobs,
    title_of,
)
from coda_cli.simulate.timeline import drawn, read_bars, view_of
from coda_cli.simulate.verdict import verdict
from coda_sim.durations import duration_from_seconds
from coda_sim.results.measure_meanings import GLOSSARY, MEANINGS
from coda_sim.results.measure_names import SECTIONS
from coda_sim.results.summary import RunResult

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --said: #f0f4f8;
        --light: 55%; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0f1419; --ink: #e6edf3; --soft: #9da7b3; --line: #30363d; --said: #1a222b; --light: 60%; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink);
       background: var(--paper); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .8rem; text-align: right; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
td:nth-child(2) { color: var(--soft); font-family: ui-monospace, monospace; font-size: 13px; }
tr.section th { padding-top: 1rem; }
abbr { text-decoration: underline dotted var(--soft); cursor: help; }
svg { display: block; height: auto; max-width: 100%; margin: 1.5rem 0; }
.plots { columns: 34rem 2; column-gap: 1.5rem; }
.plot { break-inside: avoid; }
.plot svg { fill: var(--ink); margin: 0 0 1rem; }
.wide { overflow-x: auto; }
.said { background: var(--said); border-left: 4px solid var(--soft); padding: .5rem 1rem; }
.said p { margin: .3rem 0; }
.timeline text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.timeline .node { fill: none; stroke: var(--line); }
.timeline .job { fill: hsl(var(--hue) 55% var(--light)); }
.timeline .job:hover { stroke: var(--ink); stroke-width: 1.5; }
.timeline line { stroke: var(--line); stroke-width: .5; }
dt { font-weight: 600; }
dd { margin: 0 0 .4rem 1.5rem; }
"""
_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_COLOURS = {"#ffffff": "paper", "#000000": "ink", "#b0b0b0": "line"}  # of matplotlib: paper, axes and text, grid
_IDS = re.compile(r'(\bid="|href="#|url\(#)')


class WorkloadWords(NamedTuple):
    """What is said about a workload: what was left out of it (as in `title_of`), and its account line by line."""

    left_out: str = ""
    account: tuple[str, ...] = ()


def report_page(
    results: Sequence[RunResult],
    head: dict[str, Any],
    plots: Sequence[Path],
    *,
    records: Mapping[str, Path],
    words: WorkloadWords,
) -> str:
    """Return the report. `plots` are drawn in the order given; `records`: of the runs whose timelines are drawn."""
    comparison = comparison_of(results)
    rows = [_row("th", "measure", "key in summary.json", comparison.titles)]
    for section, measures in SECTIONS:
        rows.append(f'<tr class="section"><th colspan="{len(comparison.titles) + 2}">{escape(section)}</th></tr>')
        rows += [_row("td", measure.name, measure.key, comparison.cells(measure)) for measure in measures]
    shown = "\n".join(f'<div class="plot">{_inlined(plot, number)}</div>' for number, plot in enumerate(plots))
    sentences = (
        *same_jobs(results, head),
        *assumed_speeds(results, head),
        *verdict(comparison),
        *empty_measures(comparison),
        *refused_jobs(comparison),
    )
    said = "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    title = escape(title_of(head, words.left_out))
    account = "".join(f"<li>{escape(line)}</li>\n" for line in words.account)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n<h1>{title}</h1>\n"
        f'<div class="said">{said}</div>\n{_facts(results, head)}\n<ul>\n{account}</ul>\n'
        f"<h2>All measures</h2>\n<p>Point at a name to read what it means.</p>\n"
        f'<div class="wide"><table>\n{chr(10).join(rows)}\n</table></div>\n'
        f'{_timelines(records)}<h2>Plots</h2>\n<div class="plots">\n{shown}\n</div>\n{_glossary()}\n</html>\n'
    )


def _timelines(records: Mapping[str, Path]) -> str:
    """The runs below each other, over the same time and nodes."""
    bars_by_title = {title: read_bars(path) for title, path in records.items()}
    view = view_of([*bars_by_title.values()])
    if view is None:
        return ""
    text = "<h2>Jobs on nodes</h2>\n<p>Each bar is a GPU job on a node, as high as the GPUs that it holds there; "
    text += "a colour is a user. Point at a bar to read what it is. "
    text += f"Shown: {counted(len(view.nodes), 'node')} with the most work, from {duration_from_seconds(view.from_s)} "
    text += f"to {duration_from_seconds(view.to_s)}.</p>\n"
    for title, bars in bars_by_title.items():
        text += (
            f'<h3>{escape(title)}</h3>\n<div class="wide">{drawn(bars, view, f"Jobs on nodes under {title}")}</div>\n'
        )
    return text


def _glossary() -> str:
    names = {measure.name: MEANINGS[measure.key] for _, of in SECTIONS for measure in of if measure.key in MEANINGS}
    return f"<h2>Words</h2>\n{_meanings(GLOSSARY)}\n<h2>Measures</h2>\n{_meanings(names)}"


def _meanings(meaning_by_word: Mapping[str, str]) -> str:
    items = meaning_by_word.items()
    return "<dl>\n" + "".join(f"<dt>{escape(word)}</dt><dd>{escape(says)}</dd>\n" for word, says in items) + "</dl>"


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
    said = f'<abbr title="{escape(MEANINGS[key])}">{escape(name)}</abbr>' if key in MEANINGS else escape(name)
    return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in (said, *map(escape, (key, *cells)))) + "</tr>"


def _inlined(plot: Path, number: int) -> str:
    """The drawing without its XML prologue, in the page's colours, its ids unlike those of the other drawings."""
    drawing = _PROLOGUE.sub("", plot.read_text(encoding="utf-8"), count=1)
    for colour, named in _COLOURS.items():
        drawing = drawing.replace(f": {colour}", f": var(--{named})")
    return _IDS.sub(rf"\g<1>p{number}-", drawing)
