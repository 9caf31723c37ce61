"""Puts one CPU limit back, only if it is still the agent's own."""

from __future__ import annotations

import errno
from enum import Enum

from coda.errors import InvalidInput, Outage
from coda_agent.cgroups import ENDED, Layout, Version
from coda_agent.cgroups.identity import start_ticks_from
from coda_agent.cgroups.limits import read_burst, read_limit, write_burst, write_limit
from coda_agent.cgroups.quota import CpuLimit, is_same_limit, limit_for_cores, limit_from_text
from coda_agent.cgroups.threads import processes_of
from coda_agent.host import Files, JournalEntry


class UndoOutcome(Enum):
    """What became of one entry. After each of these nothing of it is left to undo."""

    PUT_BACK = "PutBack"
    ALREADY = "Already"  # the original value was in place
    FOREIGN = "Foreign"  # another program has set a value since: it stays
    GONE = "Gone"  # the pod, the container, or this start of it


def put_back(files: Files, layout: Layout, entry: JournalEntry) -> UndoOutcome:
    """Compare and restore one CPU limit. Raises OSError or Outage if it still stands: try again."""
    try:
        if is_another_start(files, layout, entry):
            return UndoOutcome.GONE
        now, original = read_limit(files, layout, entry.target), journalled_limit(entry.original)
        if now != original:
            if not is_own(now, entry):
                return UndoOutcome.FOREIGN
            _raise_limit(files, layout, entry.target, original)
        restore_burst(files, layout, entry)
    except OSError as error:
        if error.errno in ENDED:
            return UndoOutcome.GONE
        raise
    return UndoOutcome.ALREADY if now == original else UndoOutcome.PUT_BACK


def restore_burst(files: Files, layout: Layout, entry: JournalEntry) -> None:
    """Give the cgroup the burst that the entry took from it, unless it has one again. Raises OSError."""
    if entry.burst_us > 0 and read_burst(files, layout, entry.target) == 0:
        write_burst(files, layout, entry.target, entry.burst_us)


def is_own(now: CpuLimit, entry: JournalEntry) -> bool:
    """True if the agent wrote `now` for `entry`, as written or as systemd rounds it."""
    return is_same_limit(now, journalled_limit(entry.value)) or is_same_limit(now, journalled_limit(entry.replaced))


def is_another_start(files: Files, layout: Layout, entry: JournalEntry) -> bool:
    """True if the container was restarted since, so that its limit is a new one; False if this is not known."""
    if entry.started_ticks is None:
        return False
    now = started_ticks(files, layout, entry.target)
    return now is not None and now != entry.started_ticks


def started_ticks(files: Files, layout: Layout, path: str) -> int | None:
    """Return when the first process of the container at `path` began, clock ticks since boot; None: not known."""
    starts = (_start_of(files, process) for process in processes_of(files, layout, path))
    return min((start for start in starts if start is not None), default=None)


def journalled_limit(text: str) -> CpuLimit:
    """Return the limit in a journal entry. Raises Outage for text that no agent writes."""
    try:
        return limit_from_text(text)
    except InvalidInput as error:
        raise Outage(f"the journal holds no CPU limit: {error}") from error


def _raise_limit(files: Files, layout: Layout, path: str, original: CpuLimit) -> None:
    """v1 refuses more than the pod has. If the pod was cut meanwhile, its whole limit is the most that is possible."""
    try:
        write_limit(files, layout, path, original)
    except OSError as error:
        if error.errno != errno.EINVAL or layout.version is Version.V2:
            raise
        above = read_limit(files, layout, path.rpartition("/")[0])
        if above.cores >= original.cores:
            raise
        write_limit(files, layout, path, limit_for_cores(above.cores, original.period_us))


def _start_of(files: Files, process: int) -> int | None:
    try:
        return start_ticks_from(files.proc.read_text(f"{process}/stat", most_bytes=4096))
    except OSError:
        return None
