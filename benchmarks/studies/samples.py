"""Table 1b: other samples of the same traces. One sample is one throw: few large gangs decide its mean wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from studies.cells import Cell
from studies.scope import Found, Scope, Table
from studies.traces import CODA
from studies.wording import difference_text, interval_text, markdown_table, paragraph, source_line
from studies.workloads import PROFILES, TraceWorkload, profiles_in_words, traces_in

BASE: Final = "fifo-skip"
POLICIES: Final = (BASE, "fifo-skip-easy", "arrival", "drf", "best-fit", "fgd", "tiresias-las", CODA)
"""The live policies, and the rivals that know no more: those that stop nobody, and the best of those that do."""
_NEARLY_ALL: Final = 900  # of 1000 jobs, of a trace that is used whole
_SEED: Final = 1


def sampled(workload: TraceWorkload, sample: int) -> TraceWorkload:
    """Return the workload with another choice of as many jobs; nine tenths of a trace that is used whole."""
    chosen = replace(workload.selection, keep=workload.selection.keep or _NEARLY_ALL, sample=sample)
    return replace(workload, selection=chosen)


def row_of(workload: TraceWorkload, profiles: str, policy: str, scope: Scope) -> tuple[Cell, ...]:
    """Return the cells of one policy, one per sample."""
    assert scope.traces is not None
    found = []
    for sample in scope.usual_seeds:
        order = sampled(workload, sample).order(scope.traces, profiles, policy, _SEED, quick=scope.quick)
        found.append(Cell(name=f"{workload.name} {profiles} {policy} sample {sample}", order=order))
    return tuple(found)


def cells(scope: Scope) -> tuple[Cell, ...]:
    """Return the cells of all traces that the folder has."""
    return tuple(
        cell
        for workload in traces_in(scope.traces)
        for profiles in PROFILES
        for policy in POLICIES
        for cell in row_of(workload, profiles, policy, scope)
    )


def text(scope: Scope, found: Found) -> str:
    """Return one table per trace and profile."""
    parts = [
        "### Other samples of the same traces",
        paragraph(
            f"Waits of single samples differ by a factor, so `{BASE}` is compared within each: the mean of the "
            "differences, with a 95 % interval (Student's t). ≈ marks one that may be zero. Times in seconds."
        ),
    ]
    for workload in traces_in(scope.traces):
        parts += [_one(workload, profiles, scope, found) for profiles in PROFILES]
    return "\n\n".join(parts)


def _one(workload: TraceWorkload, profiles: str, scope: Scope, found: Found) -> str:
    base = row_of(workload, profiles, BASE, scope)
    lines = []
    for policy in POLICIES:
        row = row_of(workload, profiles, policy, scope)
        waits, jcts = found.values(row, "gpu_wait_mean_s"), found.values(row, "gpu_jct_mean_s")
        lines.append(
            (
                policy,
                interval_text(waits, 1.0, 0),
                relative_text(waits, found.values(base, "gpu_wait_mean_s")),
                interval_text(found.values(row, "gpu_wait_p99_s"), 1.0, 0),
                interval_text(jcts, 1.0, 0),
                relative_text(jcts, found.values(base, "gpu_jct_mean_s")),
            )
        )
    headings = ("policy", "wait, mean", f"against {BASE}, %", "wait, p99", "JCT, mean", f"against {BASE}, %")
    first = scope.usual_seeds[0]
    command = sampled(workload, first).command(profiles, _SEED)
    return "\n\n".join(
        (
            f"#### {workload.title}: {profiles_in_words(profiles)}",
            markdown_table(headings, lines),
            source_line(command, [_SEED], scope.version),
        )
    )


def relative_text(values: Sequence[float | None], others: Sequence[float | None]) -> str:
    """Return the mean of the relative differences of pairs in percent, with its interval."""
    pairs = [(one, other) for one, other in zip(values, others, strict=True) if one is not None and other]
    return difference_text([one / other for one, other in pairs], [1.0] * len(pairs), 100.0)


TABLE: Final = Table(name="samples", cells=cells, text=text, needs_traces=True)
