"""Table 1: every real trace under every policy, with assumed curves and with run times as recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coda.policy import POLICIES
from coda.policy.cores import CoresRule
from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from studies.cells import Cell
from studies.plots import Bars, draw_bars
from studies.scope import Found, Scope, Table
from studies.wording import count, hours, item, markdown_table, number, paragraph, percent, seconds, source_line
from studies.workloads import ASSUMED, PROFILES, TRACES, TraceWorkload, profiles_in_words, traces_in

SEED: Final = 1
CODA: Final = "coda"
KNOWS_MORE: Final = {
    "sjf": "knows run times",
    "srtf": "knows run times",
    "synergy-tune-oracle": "knows each job's best cores at once",
}
"""Rivals that know more than coda, and what: bounds, no rivals."""
QUICK_POLICIES: Final = ("fifo-skip", CODA, "sjf")
NO_ALLOCATOR: Final = "coda, no allocator"

FREE: Final = "free "
"""Before a key: of the run of the same row in which stops, resizes and profiles cost nothing."""
SHARE: Final = 0.03
SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table. `sign`: -1 less is better, 1 more is, 0 neither."""

    heading: str
    key: str
    text: Callable[[float | None], str]
    sign: int = -1


COLUMNS: Final = (
    Column(heading="wait, mean", key="gpu_wait_mean_s", text=seconds),
    Column(heading="p90", key="gpu_wait_p90_s", text=seconds),
    Column(heading="p99", key="gpu_wait_p99_s", text=seconds),
    Column(heading="wait, mean, free", key=FREE + "gpu_wait_mean_s", text=seconds, sign=0),
    Column(heading="first start, mean", key="gpu_first_wait_mean_s", text=seconds, sign=0),
    Column(heading="JCT, mean", key="gpu_jct_mean_s", text=seconds),
    Column(heading="JCT, p99", key="gpu_jct_p99_s", text=seconds),
    Column(heading="JCT, mean, free", key=FREE + "gpu_jct_mean_s", text=seconds, sign=0),
    Column(heading="slowdown, 1 GPU", key="gpu_slowdown_1", text=number),
    Column(heading="2 to 7", key="gpu_slowdown_2_7", text=number),
    Column(heading="8 and more", key="gpu_slowdown_8_up", text=number),
    Column(heading="CPU wait, mean", key="cpu_wait_mean_s", text=seconds),
    Column(heading="makespan, h", key="makespan_s", text=hours),
    Column(heading="busy", key="gpu_util_queueing", text=percent, sign=0),
    Column(heading="held", key="gpu_active_queueing", text=percent, sign=0),
    Column(heading="idle: cores", key="fragmentation_cores", text=percent, sign=0),
    Column(heading="scatter", key="fragmentation_scatter", text=percent, sign=0),
    Column(heading="policy", key="fragmentation_quota", text=percent, sign=0),
    Column(heading="longest", key="gpu_wait_most_s", text=seconds),
    Column(heading="promised GPU-h", key="promised_gpu_s", text=hours, sign=0),
    Column(heading="lost GPU-h", key="lost_gpu_s", text=hours),
    Column(heading="lost core-h", key="lost_core_s", text=hours),
    Column(heading="stops", key="stops", text=count, sign=0),
)
STOPS: Final = ("aborts", "migrations", "preemptions")
JUDGED: Final = (("mean wait", "gpu_wait_mean_s"), ("mean JCT", "gpu_jct_mean_s"))


def rows_of(workload: TraceWorkload, profiles: str, scope: Scope) -> list[tuple[str, Cell]]:
    """Return the rows of one table: title and cell."""
    assert scope.traces is not None
    policies = QUICK_POLICIES if scope.quick else tuple(POLICIES)
    orders = [(name, workload.order(scope.traces, profiles, name, SEED, quick=scope.quick)) for name in policies]
    if not scope.quick:
        coda = workload.order(scope.traces, profiles, CODA, SEED, quick=False)
        orders.append((NO_ALLOCATOR, replace(coda, without=("allocator",))))
    return [(title, Cell(name=f"{workload.name} {profiles} {title}", order=order)) for title, order in orders]


def free_of(cell: Cell) -> Cell:
    """Return the cell without costs; the same cell where the policy never stops, resizes or profiles a job."""
    policy = POLICIES[cell.order.policy]
    pays = policy.has_arrays or policy.preempts is not None or policy.cores in (CoresRule.TUNED, CoresRule.AT_BEST)
    if not pays:
        return cell
    return replace(cell, name=f"{cell.name}, free", order=replace(cell.order, costs=COSTS_BY_SETTING[CostSetting.FREE]))


def cells(scope: Scope) -> tuple[Cell, ...]:
    """Return the cells of all traces that the folder has."""
    rows = [row for one in traces_in(scope.traces) for profiles in PROFILES for row in rows_of(one, profiles, scope)]
    by_name = {found.name: found for _, cell in rows for found in (cell, free_of(cell))}
    return tuple(by_name.values())


def text(scope: Scope, found: Found) -> str:
    """Return the tables, each with what the rule says of it."""
    parts = [_introduction()]
    verdicts: list[tuple[str, ...]] = []
    for workload in traces_in(scope.traces):
        for profiles in PROFILES:
            rows = rows_of(workload, profiles, scope)
            judged = [verdict(rows, found, name, key) for name, key in JUDGED]
            verdicts.append((workload.title, profiles_in_words(profiles), *(one.short for one in judged)))
            said = [*(one.long for one in judged), winners(rows, found)]
            parts += [_one(workload, profiles, scope, found), "\n".join(map(item, said))]
        parts.append(_plot(workload, scope, found))
    absent = [one.file for one in TRACES if one not in traces_in(scope.traces)]
    if absent:
        parts.append(paragraph(f"Not there, so left out: {', '.join(absent)}."))
    headings = ("trace", "run times", *(name for name, _ in JUDGED))
    parts.insert(1, markdown_table(headings, verdicts))
    return "\n\n".join(parts)


def _introduction() -> str:
    return "\n\n".join(
        (
            "### Every trace, every policy",
            paragraph(
                "Times in seconds, shares in percent of all GPUs while a GPU job waits, waits and JCT of GPU jobs "
                "unless the column says CPU. *Wait*: all the time without nodes, so also after a stop; *first start* "
                "is to the first one alone. *Free*: the same run where stops, resizes and profiles cost nothing. "
                "*Slowdown*: JCT over recorded run time, at least 1, short jobs counted as 10 s. *Stops*: aborted, "
                "migrated, preempted. *Promised*: GPU-hours kept idle for jobs that waited long. Bold: best of the "
                "rivals that know no more than coda. *Bound* rows know more. "
                "The rule: coda is first, or within 3 % or (wait) 30 s. It speaks of GPU jobs on the traces of this "
                "page: `decisions/0146` has traces on which coda loses."
            ),
        )
    )


def _one(workload: TraceWorkload, profiles: str, scope: Scope, found: Found) -> str:
    rows = rows_of(workload, profiles, scope)
    best = {column.key: _best(rows, found, column) for column in COLUMNS if column.sign}
    lines = []
    for title, cell in rows:
        marked = f"{title} (bound)" if cell.order.policy in KNOWS_MORE else title
        if not found.has(cell):
            lines.append([marked, "failed", *[""] * (len(COLUMNS) - 1)])
            continue
        lines.append([marked, *(_cell(cell, found, column, best.get(column.key), title) for column in COLUMNS)])
    assumed = profiles == ASSUMED
    title = "assumed curves of speed over cores" if assumed else "run times as recorded, whatever the cores"
    parts = [f"#### {workload.title}: {title}", *([paragraph(workload.note)] if workload.note and assumed else [])]
    table = markdown_table(("policy", *(column.heading for column in COLUMNS)), lines)
    return "\n\n".join([*parts, table, source_line(workload.command(profiles, SEED), [SEED], scope.version)])


def _cell(cell: Cell, found: Found, column: Column, best: float | None, title: str) -> str:
    if column.key == "stops":
        return "/".join(count(found.value(cell, key)) for key in STOPS)
    if column.key.startswith(FREE):
        return column.text(found.value(free_of(cell), column.key.removeprefix(FREE)))
    value = found.value(cell, column.key)
    shown = column.text(value)
    is_best = value is not None and value == best and cell.order.policy not in KNOWS_MORE and title != NO_ALLOCATOR
    return f"**{shown}**" if is_best else shown


def _best(rows: Sequence[tuple[str, Cell]], found: Found, column: Column) -> float | None:
    known = [value for _, cell in _fair(rows) if (value := found.value(cell, column.key)) is not None]
    return min(known, key=lambda value: -column.sign * value) if known else None


def _fair(rows: Sequence[tuple[str, Cell]]) -> list[tuple[str, Cell]]:
    """The rows that know no more than coda: no bounds, and no coda with a part left out."""
    return [(title, cell) for title, cell in rows if cell.order.policy not in KNOWS_MORE and title != NO_ALLOCATOR]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the rule says of coda in one measure."""

    holds: bool
    short: str
    long: str


def verdict(rows: Sequence[tuple[str, Cell]], found: Found, name: str, key: str) -> Verdict:
    """Return whether coda is first among those that know no more, or within 3 % (or 30 s of the time queued)."""
    known = [(value, title) for title, cell in _fair(rows) if (value := found.value(cell, key)) is not None]
    own = next((value for value, title in known if title == CODA), None)
    if own is None:
        return Verdict(holds=False, short="not measured", long=f"Rule, {name}: coda was not measured.")
    best, winner = min((value, title) for value, title in known)
    over_s = own - best
    if over_s <= 0:
        return Verdict(holds=True, short="first", long=f"Rule, {name}: coda is first ({seconds(own)} s).")
    holds = over_s <= SHARE * best or (key == "gpu_wait_mean_s" and over_s <= SECONDS)
    behind = f"{over_s / best:.1%}" if best else f"{over_s:.0f} s"
    word = "kept" if holds else "BROKEN"
    long = f"Rule, {name}: {word}: {winner} {seconds(best)} s, coda {seconds(own)} s ({behind} more)."
    return Verdict(holds=holds, short=f"{'within' if holds else 'broken:'} {behind} of {winner}", long=long)


def winners(rows: Sequence[tuple[str, Cell]], found: Found) -> str:
    """Name each column in which a rival that knows no more is clearly (by more than 3 %) better than coda."""
    own = next(cell for title, cell in rows if title == CODA)
    lost = []
    for column in COLUMNS:
        value = found.value(own, column.key)
        if not column.sign or value is None:
            continue
        known = [(other, title) for title, cell in _fair(rows) if (other := found.value(cell, column.key)) is not None]
        best, winner = min(known, key=lambda pair: (-column.sign * pair[0], pair[1]))
        if value - best > SHARE * best and column.text(value) != column.text(best):
            lost.append(f"{column.heading} ({winner} {column.text(best)}, coda {column.text(value)})")
    return f"Columns that a rival wins by more than 3 %: {'; '.join(lost) if lost else 'none'}."


def _plot(workload: TraceWorkload, scope: Scope, found: Found) -> str:
    rows_by_profiles = [rows_of(workload, profiles, scope) for profiles in PROFILES]
    titles = [title for title, _ in rows_by_profiles[0]]
    bars = [
        Bars(
            title=f"{name}, {profiles_in_words(profiles)}",
            values=[found.value(cell, key) for _, cell in rows],
        )
        for name, key in (("mean wait, s", "gpu_wait_mean_s"), ("mean JCT, s", "gpu_jct_mean_s"))
        for profiles, rows in zip(PROFILES, rows_by_profiles, strict=True)
    ]
    path = scope.plots / f"trace-{workload.name}.svg"
    draw_bars(path, titles, bars, marked=CODA, pale=[title for title in titles if title in KNOWS_MORE])
    return f"![{workload.title}: mean wait and mean JCT by policy]({scope.plots.name}/{path.name})"


TABLE: Final = Table(name="traces", cells=cells, text=text, needs_traces=True)
