"""What became of the rows of a workload, in words: for stderr and for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from coda.wording import counted
from coda_sim.durations import duration_from_seconds
from coda_sim.runs import RunOrder, shape_of
from coda_sim.workload.cluster_shape import ClusterShape
from coda_sim.workload.gangs import Change
from coda_sim.workload.tenant_tree import strangers_of
from coda_sim.workload.workload import Load

FAR_S: Final = 30 * 86_400.0
FEW_OF: Final = 100  # at most one in so many jobs is few
SHOWN: Final = 20  # refused rows that are named one by one; the rest are counted


def account_of(template: RunOrder, found: Load, warmup_s: float) -> tuple[str, ...]:
    """Return what was read, left out, changed and refused, line by line."""
    lines = [] if found.trace is None else found.trace.account().split("\n")
    lines += [
        f"refused: {template.source.name}:{one.row.line}: {one.row.job_id} {one.sentence}"
        for one in found.refused[:SHOWN]
    ]
    if len(found.refused) > SHOWN:
        more = counted(len(found.refused) - SHOWN, "more row")
        lines.append(f"... and {more} refused, because no node of the cluster is large enough")
    if template.source.request_table is not None and not any(Change.CORES_ASSUMED in g.changes for g in found.gangs):
        lines.append(f"--request-table {template.source.request_table} was not needed: every job names its cores")
    lines += _memory(found, shape_of(template))
    lines += _far_submissions(found)
    lines.append(
        f"{counted(len(found.gangs), 'job')} ({template.source.selection.rule()}) on {shape_of(template)}; "
        f"{'; '.join(_changes(found)) or 'no row changed'}; "
        f"measured from {duration_from_seconds(warmup_s)} after the first submission to "
        f"{duration_from_seconds(template.drain_s)} before the last"
    )
    return (*lines, *strangers_of(template.tenants, found.gangs))


def _changes(found: Load) -> Iterator[str]:
    """Yield how many rows were changed in each way; one row may be changed in two."""
    rows_by_change = Counter(change for gang in found.gangs for change in gang.changes)
    for change in Change:
        if rows := rows_by_change[change]:
            yield f"{counted(rows, 'row')}: {change.value}"


def _far_submissions(found: Load) -> Iterator[str]:
    """Yield a sentence if few jobs are far from all others: more than half of the span, and 30 days (our choice).

    One wrong date is enough to make all averages over time those of an empty cluster."""
    rows = sorted((gang.row for gang in found.gangs), key=lambda row: row.submit_s)
    few = max(1, len(rows) // FEW_OF)
    span_s = rows[-1].submit_s - rows[0].submit_s
    edges = [(n, "before", rows[:n]) for n in range(1, few + 1)]
    edges += [(len(rows) - n, "after", rows[-n:]) for n in range(1, few + 1)]
    for number, where, apart in edges:
        if number in (0, len(rows)):
            continue
        gap_s = rows[number].submit_s - rows[number - 1].submit_s
        if gap_s > max(span_s / 2, FAR_S):
            jobs = f"{counted(len(apart), 'job')} {'is' if len(apart) == 1 else 'are'}"
            yield (
                f"{jobs} submitted {duration_from_seconds(gap_s)} {where} all others, as line {apart[0].line} "
                f"({apart[0].job_id}): the gap counts in every average over time; is the date right? "
                "--window leaves them out"
            )
            return


def _memory(found: Load, shape: ClusterShape) -> Iterator[str]:
    """Yield a sentence if jobs name memory and the nodes do not."""
    jobs = sum(bool(gang.row.memory_gib) for gang in found.gangs)
    if jobs and not shape.limits_memory:
        group = shape.groups[0]
        one = f"{group.nodes}x{group.gpus}x{group.cores}"
        names = "names" if jobs == 1 else "name"
        yield f"{counted(jobs, 'job')} {names} memory that does not count: {one} names none, as {one}x512 does"
