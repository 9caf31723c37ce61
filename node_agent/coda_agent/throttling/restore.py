"""Undoes everything temporary: at start, at the end, and for an agent that died.

Reads the journal and the groups, and puts back what is still the agent's own. What other programs set since stays."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from coda.errors import Outage
from coda_agent.cgroups import Layout
from coda_agent.host import ChangeKind, Files, JournalEntry, UndoJournal
from coda_agent.resctrl import Groups
from coda_agent.throttling.core_limits import pods_first
from coda_agent.throttling.undo import UndoOutcome, put_back

BOOT_ID = "sys/kernel/random/boot_id"
ABSENT = frozenset((errno.ENOENT, errno.ENODEV, errno.ENOTDIR))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What `restore` did. `failures`: one sentence for each thing that still stands, to be tried again."""

    put_back: tuple[JournalEntry, ...] = ()
    dropped: tuple[JournalEntry, ...] = ()  # nothing to undo: gone, another boot, or set by others
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleInForce:
    """One throttle in force, as published for the program that must undo it if this agent dies."""

    pod_uid: str  # empty: the limit of a whole domain
    container_id: str
    what: str
    original: str
    value: str
    since_s: float  # seconds since 1970


def boot_id(files: Files) -> str:
    """Return the id of this boot of the machine. Raises Outage if it cannot be read: then no journal can be trusted."""
    try:
        return files.proc.read_text(BOOT_ID, most_bytes=4096).strip()
    except OSError as error:
        raise Outage(f"the machine's boot id cannot be read: {error}") from error


def restore_node(
    *, files: Files, layout: Layout | None, groups: Groups | None, journal: UndoJournal, boot: str
) -> Restoration:
    """Undo all entries of the journal and remove all groups of the agent. Goes on after failures; safe to repeat.

    `layout`, `groups`: None where the node has none any more; what was changed there is gone with it."""
    earlier = tuple(entry for entry in journal.entries if entry.boot_id != boot)
    found = [_close_entries(journal, earlier)]
    found += [_restore_limit(files, layout, journal, entry) for entry in pods_first(journal.entries)]
    found.append(_restore_groups(groups, journal))
    return Restoration(
        put_back=tuple(entry for one in found for entry in one.put_back),
        dropped=tuple(entry for one in found for entry in one.dropped),
        failures=tuple(sentence for one in found for sentence in one.failures),
    )


def in_force(entries: Iterable[JournalEntry]) -> tuple[ThrottleInForce, ...]:
    """Return what is in force by the journal, oldest first. Ties: by target."""
    ranked = sorted(entries, key=lambda entry: (entry.at_s, entry.target, entry.kind.value))
    return tuple(
        ThrottleInForce(
            pod_uid=entry.pod_uid,
            container_id=entry.container_id,
            what=_subject(entry),
            original=entry.original,
            value=entry.value,
            since_s=entry.at_s,
        )
        for entry in ranked
    )


def _subject(entry: JournalEntry) -> str:
    if entry.kind is ChangeKind.CPU_LIMIT:
        return f"CPU limit of {entry.target}"
    if entry.kind is ChangeKind.BANDWIDTH:
        return f"memory bandwidth limit of domain {entry.target}"
    return "limited memory bandwidth"


def _restore_limit(files: Files, layout: Layout | None, journal: UndoJournal, entry: JournalEntry) -> Restoration:
    try:
        undone = UndoOutcome.GONE if layout is None else put_back(files, layout, entry)
    except (OSError, Outage) as error:
        return Restoration(failures=(f"the CPU limit of {entry.target} cannot be put back: {error}",))
    closed = _close_entries(journal, (entry,))
    if undone is UndoOutcome.PUT_BACK and not closed.failures:
        return Restoration(put_back=(entry,))
    return closed


def _restore_groups(groups: Groups | None, journal: UndoJournal) -> Restoration:
    """Groups need no record: their names are the agent's own, and without them nothing is limited."""
    entries = tuple(entry for entry in journal.entries if entry.kind is not ChangeKind.CPU_LIMIT)
    if groups is None:
        return _close_entries(journal, entries)
    try:
        failures = groups.remove_all().failures
    except OSError as error:
        if error.errno in ABSENT:
            return _close_entries(journal, entries)
        failures = (f"memory bandwidth limits cannot be removed: {error}",)
    if failures:
        return Restoration(failures=failures)
    closed = _close_entries(journal, entries)
    return closed if closed.failures else Restoration(put_back=entries)


def _close_entries(journal: UndoJournal, entries: Iterable[JournalEntry]) -> Restoration:
    done: list[JournalEntry] = []
    try:
        for entry in entries:
            journal.end(*entry.key)
            done.append(entry)
    except Outage as error:
        return Restoration(dropped=tuple(done), failures=(str(error),))
    return Restoration(dropped=tuple(done))
