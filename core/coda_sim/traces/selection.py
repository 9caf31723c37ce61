"""Which rows of a trace are used, and how their times are scaled. Every result names its selection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coda.errors import InvalidInput
from coda_sim.durations import duration_from_seconds
from coda_sim.traces.trace import JobKind, Row

DAY_S = 86_400.0
KEEP_OF = 1000
_WINDOW = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", re.ASCII)
_KNUTH = 2_654_435_761  # from the traces' own rule: it spreads consecutive job numbers evenly
_APART = 131  # between two samples; prime to 1000, so that there are 1000 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The steps of a selection, applied in the order of the fields; `None` leaves a step out.

    window_days: submitted from the first to before the second, in days from the start of the trace
    gpu_jobs_only: leave CPU-only jobs out
    max_gpus_per_job: leave larger jobs out
    keep: of 1000, by the hash rule `(n * 2654435761) % 1000 < keep`, n = the digits of job_id; CPU-only jobs stay
    sample: 0, or another choice of as many jobs: `131 * sample` is added to the hash
    limit: the first `limit` jobs
    compress: submit times are divided by it, run times are not
    max_duration_s: longer run times are cut to it
    """

    window_days: tuple[float, float] | None = None
    gpu_jobs_only: bool = False
    max_gpus_per_job: int | None = None
    keep: int | None = None
    sample: int = 0
    limit: int | None = None
    compress: float = 1.0
    max_duration_s: float | None = None

    def rule(self) -> str:
        """Return the selection in words, for every result."""
        parts = [
            f"days {self.window_days[0]:g} to {self.window_days[1]:g}" if self.window_days else "",
            "GPU jobs only" if self.gpu_jobs_only else "",
            f"at most {self.max_gpus_per_job} GPUs per job" if self.max_gpus_per_job is not None else "",
            f"GPU jobs with (n * {_KNUTH}{self._shift()}) % {KEEP_OF} < {self.keep}, n = digits of job_id"
            if self.keep is not None
            else "",
            f"the first {self.limit}" if self.limit is not None else "",
            f"submit times / {self.compress:g}" if self.compress != 1 else "",
            f"run times cut at {duration_from_seconds(self.max_duration_s)}" if self.max_duration_s is not None else "",
        ]
        return "; ".join(part for part in parts if part) or "all rows as they are"

    def _shift(self) -> str:
        return f" + {_APART} * {self.sample}" if self.sample else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The selected rows, scaled. `left_out`: the number of others. `durations_cut`: rows with a shortened run time."""

    rows: tuple[Row, ...]
    left_out: int
    durations_cut: int


def select(rows: Sequence[Row], selection: Selection, source: str) -> Selected:
    """Return the selected rows in order, with scaled times. Raises InvalidInput if an id has no digits to hash.

    `source`: the file or workload that an error names."""
    chosen = [row for row in rows if _is_wanted(row, selection, source)][: selection.limit]
    scaled = tuple(_scaled(row, selection) for row in chosen)
    cut = sum(after.duration_s < before.duration_s for after, before in zip(scaled, chosen, strict=True))
    return Selected(rows=scaled, left_out=len(rows) - len(chosen), durations_cut=cut)


def days_from_window(text: str) -> tuple[float, float]:
    """Return `A:B`, in days, as (A, B). Raises InvalidInput."""
    match = _WINDOW.fullmatch(text.strip())
    first, last = (float(day) for day in match.groups()) if match else (0.0, 0.0)
    if first >= last:
        raise InvalidInput(f"{text!r} is not a window: write FIRST:LAST in days, as 0:7 for the first week")
    return first, last


def _is_wanted(row: Row, selection: Selection, source: str) -> bool:
    if selection.window_days is not None:
        first, last = selection.window_days
        if not first * DAY_S <= row.submit_s < last * DAY_S:
            return False
    if row.kind is JobKind.CPU:
        return not selection.gpu_jobs_only
    if selection.max_gpus_per_job is not None and row.gpus > selection.max_gpus_per_job:
        return False
    return selection.keep is None or _is_kept(row, selection.keep, selection.sample, source)


def _is_kept(row: Row, keep: int, sample: int, source: str) -> bool:
    digits = "".join(re.findall(r"\d", row.job_id, re.ASCII))
    if not digits:
        raise InvalidInput(
            f"{source}:{row.line}: job_id {row.job_id!r} has no digits, so the rule of --keep has nothing to hash"
        )
    return (int(digits) * _KNUTH + _APART * sample) % KEEP_OF < keep


def _scaled(row: Row, selection: Selection) -> Row:
    longest_s = selection.max_duration_s or row.duration_s
    return replace(row, submit_s=row.submit_s / selection.compress, duration_s=min(row.duration_s, longest_s))
