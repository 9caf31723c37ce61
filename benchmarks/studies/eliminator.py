"""Table 5: the eliminator on a month with standing heavy CPU jobs, a variant that was fixed before its first run."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda_sim.results.summary import interval_of
from coda_sim.traces import Selection
from coda_sim.workload.month_config import STANDING_USER, lengthened
from studies.cells import Cell
from studies.scope import Found, Scope, Table
from studies.wording import interval_text, item, markdown_table, paragraph, source_line
from studies.workloads import month_order, quarter

ARMS: Final = (("with the eliminator", ()), ("without it", ("eliminator",)))
NODES_PER_STANDING_JOB: Final = 5
"""One standing job for every five nodes, of 12 cores and 240 of a node's 256 GB/s (`MonthConfig`, `JobModelConfig`)."""
DAYS: Final = 2
FACTOR: Final = 1.5
LINES: Final = (
    ("victims' lost work, GPU-h", "victim_lost_gpu_s", 1 / 3600, 1),
    ("time as a victim, job-h", "victim_seconds", 1 / 3600, 1),
    ("throttles", "throttles", 1.0, 0),
    ("GPU utilisation while a GPU job waits, %", "gpu_util_queueing", 100.0, 2),
    ("GPU utilisation, %", "gpu_util_all", 100.0, 2),
    ("mean wait of GPU jobs, s", "gpu_wait_mean_s", 1.0, 0),
    ("mean JCT of GPU jobs, s", "gpu_jct_mean_s", 1.0, 0),
    ("mean JCT of CPU jobs, s", "cpu_jct_mean_s", 1.0, 0),
)


def cells_of(without: tuple[str, ...], title: str, scope: Scope) -> tuple[Cell, ...]:
    """Return the cells of one arm, by seed."""
    month = quarter(quick=scope.quick)
    month = month if scope.quick else lengthened(month, DAYS / month.days)
    nodes = sum(group.nodes for group in month.shape.groups)
    month = replace(month, standing_jobs=max(1, nodes // NODES_PER_STANDING_JOB))
    found = []
    for seed in scope.usual_seeds:
        order = month_order(month, "coda", seed)
        if scope.quick:  # an hour each: every second of a contended node is a window
            order = replace(order, source=replace(order.source, selection=Selection(max_duration_s=3600.0)))
        models = replace(order.models, standing_user=STANDING_USER)
        name = f"eliminator {title} seed {seed}"
        found.append(Cell(name=name, order=replace(order, models=models, without=without)))
    return tuple(found)


def cells(scope: Scope) -> tuple[Cell, ...]:
    """Return all cells."""
    return tuple(cell for title, without in ARMS for cell in cells_of(without, title, scope))


def text(scope: Scope, found: Found) -> str:
    """Return the table, and whether it shows what the paper says."""
    columns = [cells_of(without, title, scope) for title, without in ARMS]
    rows = [
        (name, *(interval_text(found.values(column, key), scale, decimals) for column in columns))
        for name, key, scale, decimals in LINES
    ]
    return "\n\n".join(
        (
            "### The eliminator, where heavy CPU jobs stand",
            paragraph(
                "CODA reports 2.3 points of utilisation and half the queue for its eliminator. The fitted month has "
                "too few heavy CPU jobs at a time for that, so this is another one, fixed before its first run: two "
                "days of a quarter of the month, and on one node in five a CPU job of 12 cores that wants 240 of the "
                "node's 256 GB/s, from the first second to the last. *Lost work*: what jobs that lose more than 5 % "
                "of their speed to neighbours would have done besides."
            ),
            markdown_table(("measure", *(title for title, _ in ARMS)), rows),
            source_line("make results ONLY=eliminator", scope.usual_seeds, scope.version),
            item(verdict(scope, found)),
        )
    )


def verdict(scope: Scope, found: Found) -> str:
    """Return by what factor victims lose less, and the sign of the difference in utilisation."""
    on, off = (cells_of(without, title, scope) for title, without in ARMS)
    lost = [found.values(cells, "victim_lost_gpu_s") for cells in (on, off)]
    busy = [found.values(cells, "gpu_util_all") for cells in (on, off)]
    ratios = [much / little for little, much in zip(*lost, strict=True) if little and much is not None]
    one = interval_of(ratios) if ratios and len(ratios) == len(on) else None
    if one is None:
        return "Victims lose nothing in one of the arms, or a run failed: no factor can be given."
    kept = "kept" if one.mean >= FACTOR else "MISSED"
    spread = "" if one.high is None else f" ± {one.high - one.mean:.2f}"
    gains = [first - second for first, second in zip(*busy, strict=True) if first is not None and second is not None]
    gain = sum(gains) / len(gains) if gains else 0.0
    return (
        f"Without the eliminator victims lose {one.mean:.2f}{spread} times as much work, target >= {FACTOR}: {kept}. "
        f"Utilisation is {100 * gain:+.2f} points with it (paper: +2.3)."
    )


TABLE: Final = Table(name="eliminator", cells=cells, text=text)
