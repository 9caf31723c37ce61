"""Table 4: every part of coda alone off, and alone on, with intervals over seeds; what is within noise is marked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from coda.policy.config import Component
from coda_sim.runs import PARTS_BY_POLICY, RunOrder
from studies.cells import Cell
from studies.scope import Found, Scope, Table
from studies.wording import difference_text, interval_text, markdown_table, paragraph, source_line
from studies.workloads import ASSUMED, TRACES, month_order, quarter

CODA: Final = "coda"
NEEDS: Final[Mapping[Component, frozenset[Component]]] = {
    Component.BORROWING: frozenset({Component.ARRAYS}),
    Component.MIGRATION: frozenset({Component.ARRAYS}),
}
"""Parts that do nothing without others: alone on they come with these."""
COLUMNS: Final = (
    ("busy while a job waits, %", "gpu_util_queueing", 100.0),
    ("held while a job waits, %", "gpu_active_queueing", 100.0),
    ("idle for cores, %", "fragmentation_cores", 100.0),
    ("GPU jobs at once, %", "gpu_started_10s", 100.0),
    ("GPU wait, mean, s", "gpu_wait_mean_s", 1.0),
    ("GPU JCT, mean, s", "gpu_jct_mean_s", 1.0),
    ("CPU jobs in 3 min, %", "cpu_started_3min", 100.0),
)
TRACE: Final = TRACES[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a row leaves out: parts of the policy, and promises to jobs that wait long (decisions/0047)."""

    without: tuple[str, ...] = ()
    promises: bool = True

    def applied(self, order: RunOrder) -> RunOrder:
        """Return the order of the row."""
        planner = order.planner if self.promises else replace(order.planner, promise_patience_s=None)
        return replace(order, without=self.without, planner=planner)


def variants() -> dict[str, Variant]:
    """Return what each row leaves out, by its title: nothing, each switch, all but each switch, everything."""
    parts = PARTS_BY_POLICY[CODA]
    rows = {"coda": Variant()}
    rows |= {f"without {part.value}": Variant(without=_named(frozenset({part}))) for part in parts}
    rows["without promises"] = Variant(promises=False)
    for part in parts:
        needed = NEEDS.get(part, frozenset()).intersection(parts)
        title = " and ".join([*sorted(one.value for one in needed), part.value])
        rows[f"only {title}"] = Variant(without=_named(frozenset(parts) - needed - {part}), promises=False)
    rows["only promises"] = Variant(without=_named(frozenset(parts)))
    return {**rows, "none of them": Variant(without=_named(frozenset(parts)), promises=False)}


def _named(parts: frozenset[Component]) -> tuple[str, ...]:
    return tuple(sorted(part.value for part in parts))


def workloads_of(scope: Scope) -> tuple[str, ...]:
    """Return the names of what the ablations run on."""
    has_trace = scope.traces is not None and (scope.traces / TRACE.file).exists() and not scope.quick
    return ("quarter month", *([TRACE.name] if has_trace else []))


def cells_of(workload: str, variant: Variant, title: str, scope: Scope) -> tuple[Cell, ...]:
    """Return the cells of one row, by seed."""
    return tuple(
        Cell(
            name=f"ablation {workload} {title} seed {seed}",
            order=variant.applied(_order(workload, seed, scope)),
        )
        for seed in scope.usual_seeds
    )


def _order(workload: str, seed: int, scope: Scope) -> RunOrder:
    if workload == TRACE.name:
        assert scope.traces is not None
        return TRACE.order(scope.traces, ASSUMED, CODA, seed, quick=scope.quick)
    return month_order(quarter(quick=scope.quick), CODA, seed)


def cells(scope: Scope) -> tuple[Cell, ...]:
    """Return all cells."""
    return tuple(
        cell
        for workload in workloads_of(scope)
        for title, variant in variants().items()
        for cell in cells_of(workload, variant, title, scope)
    )


def text(scope: Scope, found: Found) -> str:
    """Return a table per workload."""
    return "\n\n".join(
        (
            "### Ablations",
            paragraph(
                "The first and the last row are values, the others differences: of *without* rows from coda as a "
                "whole, of *only* rows from coda with none of its parts. Pairs have the same seed; ± is half the "
                "width of the 95 % interval; ≈ marks a difference within noise (the interval holds 0). "
                "*Without arrays* still puts jobs of four GPUs and more before smaller ones (`decisions/0146`)."
            ),
            *(_one(workload, scope, found) for workload in workloads_of(scope)),
            source_line("make results ONLY=ablations", scope.usual_seeds, scope.version),
        )
    )


def _one(workload: str, scope: Scope, found: Found) -> str:
    by_title = {title: cells_of(workload, variant, title, scope) for title, variant in variants().items()}
    whole, none = by_title["coda"], by_title["none of them"]
    rows = []
    for title, row in by_title.items():
        if title in ("coda", "none of them"):
            shown = [interval_text(found.values(row, key), scale) for _, key, scale in COLUMNS]
        else:
            base = whole if title.startswith("without") else none
            shown = [
                difference_text(found.values(row, key), found.values(base, key), scale) for _, key, scale in COLUMNS
            ]
        rows.append((title, *shown))
    where = "Ten days of a quarter of the month" if workload != TRACE.name else f"{TRACE.title}, assumed curves"
    return f"#### {where}\n\n" + markdown_table(("", *(heading for heading, *_ in COLUMNS)), rows)


TABLE: Final = Table(name="ablations", cells=cells, text=text)
