"""The undo journal: every change of the node is on the disk before it is made.

One line per record, with a checksum. An entry begins before the change and ends after the value was put back. A killed
agent leaves its open entries to the next one (`throttling.restore`). A damaged line loses only itself."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from coda.errors import Outage
from coda_agent.host.state_dir import StateDir

log = logging.getLogger(__name__)

NAME = "journal"
LOCK = "lock"
MOST_BYTES = 16 << 20  # read at start; one record has some 500 bytes
MOST_RECORDS = 2000  # then closed entries are dropped


class ChangeKind(Enum):
    """What was changed."""

    CPU_LIMIT = "cpu.max"  # a cgroup's CPU limit; target: its path
    BANDWIDTH = "mba"  # the throttle group's limit; target: the domain
    GROUP = "group"  # the throttle group has a pod; target: its uid


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One change to undo. `replaced`: the value just before `value`: the original, or an earlier one of the agent."""

    kind: ChangeKind
    target: str
    original: str
    replaced: str
    value: str
    at_s: float  # seconds since 1970
    boot_id: str
    pod_uid: str = ""  # empty: concerns no single pod
    container_id: str = ""  # empty: the pod as a whole
    started_ticks: int | None = None  # when the container's first process began; None: not known
    burst_us: int = 0  # of a CPU limit: the burst that was taken away, because the kernel keeps quotas above it

    @property
    def key(self) -> tuple[ChangeKind, str]:
        """What the entry is about. At most one entry per key is open."""
        return self.kind, self.target


_FIELDS = frozenset(field.name for field in fields(JournalEntry))

Stamp = Callable[[JournalEntry], JournalEntry]
"""Gives a new entry its time and boot: those who make a change leave both empty."""


class UndoJournal:
    """The journal of one state directory; only one process can open it. Entries are in the order in which they
    began."""

    def __init__(self, state_dir: StateDir) -> None:
        """Lock the directory, read the open entries of the earlier agent, and drop the closed ones.

        On a full disk only the last fails: what is open can be undone, and nothing new begins until there is space.
        Raises Outage if another agent works here, or the directory cannot be used."""
        try:
            self._lock = _lock_file(state_dir.directory / LOCK)
        except OSError as error:
            raise Outage(f"the state directory {state_dir.directory} cannot be used: {error}") from error
        self._state_dir = state_dir
        self._entries: dict[tuple[ChangeKind, str], JournalEntry] = {}
        self._records = 0
        try:
            self.damage = self._read()
            self._try_to_compact()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise Outage(f"the journal in {state_dir.directory} cannot be used: {error}") from error
            raise

    @property
    def entries(self) -> tuple[JournalEntry, ...]:
        """The changes to undo, in the order in which they began."""
        return tuple(self._entries.values())

    def entry(self, kind: ChangeKind, target: str) -> JournalEntry | None:
        """Return the open entry of `target`; None if nothing of it has to be undone."""
        return self._entries.get((kind, target))

    def begin(self, entry: JournalEntry) -> None:
        """Write `entry` to the disk, in place of an entry with the same key. The change may be made only after this.

        Raises Outage if it cannot be written; then the change must not be made."""
        self._append({"begin": _entry_json(entry)})
        self._entries[entry.key] = entry

    def end(self, kind: ChangeKind, target: str) -> None:
        """Close the entry of `target`, if one is open. Raises Outage if this cannot be written; the entry then stays
        open."""
        if (kind, target) in self._entries:
            self._append({"end": [kind.value, target]})
            del self._entries[kind, target]

    def close(self) -> None:
        """Let another process open the journal."""
        os.close(self._lock)

    def _append(self, record: object) -> None:
        try:
            if self._records >= MOST_RECORDS:
                self._compact()
            self._state_dir.append(NAME, _line(record))
        except OSError as error:
            self._records = MOST_RECORDS  # a part of it may be there: the next record starts a clean file
            raise Outage(f"the journal in {self._state_dir.directory} cannot be written: {error}") from error
        self._records += 1

    def _try_to_compact(self) -> None:
        try:
            self._compact()
        except OSError as error:
            self._records = MOST_RECORDS  # the next record, too, begins with it
            log.error(
                "the journal in %s cannot be written: %s; nothing is throttled until it can",
                self._state_dir.directory,
                error,
            )

    def _compact(self) -> None:
        lines = [_line({"begin": _entry_json(entry)}) for entry in self._entries.values()]
        self._state_dir.replace(NAME, b"".join(lines))
        self._records = 0

    def _read(self) -> str | None:
        """Read the open entries; return one sentence if lines were damaged."""
        damaged = 0
        for line in filter(None, self._state_dir.read(NAME, most_bytes=MOST_BYTES).split(b"\n")):
            try:
                self._replay(_record_from(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                damaged += 1
        if not damaged:
            return None
        lines = "line was" if damaged == 1 else "lines were"
        return f"{damaged} {lines} damaged in the journal in {self._state_dir.directory}; all others were read"

    def _replay(self, record: Mapping[str, Any]) -> None:
        if "begin" in record:
            entry = _entry_from(record["begin"])
            self._entries[entry.key] = entry
        else:
            kind, target = record["end"]
            self._entries.pop((ChangeKind(kind), target), None)


def _lock_file(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Outage(
            f"another node agent (process {holder}) is at work on this node with {path.parent}; stop it first"
        ) from error
    with suppress(OSError):  # on a full disk; it only helps whoever reads the refusal above
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _entry_json(entry: JournalEntry) -> dict[str, object]:
    return {**asdict(entry), "kind": entry.kind.value}


def _line(record: object) -> bytes:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode()
    return b"\n%08x %s\n" % (
        zlib.crc32(text),
        text,
    )  # a line end on both sides, so that damage next to it does not reach it


def _record_from(line: bytes) -> Mapping[str, Any]:
    checksum, _, text = line.partition(b" ")
    if int(checksum, 16) != zlib.crc32(text):
        raise ValueError("the checksum is wrong")
    record: Mapping[str, Any] = json.loads(text)
    return record


def _entry_from(plain: Mapping[str, Any]) -> JournalEntry:
    """Raises TypeError for a field that is missing or of another type: later code would fail at each start.

    Fields that only a newer agent knows are left out: what it changed is undone as far as this one can."""
    known = {name: value for name, value in plain.items() if name in _FIELDS}
    entry = JournalEntry(**{**known, "kind": ChangeKind(plain["kind"])})
    values = (entry.target, entry.original, entry.replaced, entry.value)
    texts = (*values, entry.boot_id, entry.pod_uid, entry.container_id)
    numbers = (entry.at_s, entry.burst_us, entry.started_ticks or 0)
    are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if not are_numbers or not all(isinstance(text, str) for text in texts):
        raise TypeError("a field has another type")
    return entry
