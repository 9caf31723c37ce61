"""Lowers pods' CPU limits and puts them back.

Limits are only lowered, and what was there is put back. Every write is in the journal first. A value that another
program sets is left alone until a new decision lowers it again."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coda.errors import Outage
from coda_agent.cgroups import ENDED, ContainerCgroup, Layout, find_pod, list_containers
from coda_agent.cgroups.limits import (
    LimitChange,
    in_kernel_order,
    read_burst,
    read_limit,
    write_burst,
    write_limit,
)
from coda_agent.cgroups.quota import CpuLimit
from coda_agent.host import ChangeKind, Files, JournalEntry, Stamp, UndoJournal
from coda_agent.throttling.core_split import limits_within
from coda_agent.throttling.undo import (
    UndoOutcome,
    is_another_start,
    is_own,
    journalled_limit,
    put_back,
    restore_burst,
    started_ticks,
)


class CoreLimits:
    """The CPU limits that the agent has lowered on this node; all of them are in the journal.

    Methods return one sentence per thing that did not go as wanted. Calling again is safe and tries again."""

    def __init__(self, files: Files, layout: Layout, journal: UndoJournal, stamp: Stamp) -> None:
        self._files = files
        self._layout = layout
        self._journal = journal
        self._stamp = stamp
        self._left_alone: dict[str, str] = {}  # uid by path: others set it since the last decision

    def lowered_pods(self) -> frozenset[str]:
        """Return the uids of pods with a limit to put back."""
        return frozenset(entry.pod_uid for entry in self._journal.entries if entry.kind is ChangeKind.CPU_LIMIT)

    def lower(self, uid: str, cores: float) -> tuple[str, ...]:
        """Limit a pod to `cores` by a new decision. At or above its own limits, these are put back; where there is
        nothing to put back, either, the decision failed."""
        return self._try_to_lower(uid, cores, is_new=True)

    def lower_again(self, uid: str, cores: float) -> tuple[str, ...]:
        """Restore what `lower` did where it was lost: new containers, and values that are back."""
        return self._try_to_lower(uid, cores, is_new=False)

    def release_pod(self, uid: str) -> tuple[str, ...]:
        """Put back all limits of a pod, its own before its containers'."""
        problems: list[str] = []
        for entry in pods_first(self._journal.entries):
            if entry.pod_uid == uid:
                problems += self._put_back(entry)
        self._clear_left_alone(uid)
        return tuple(problems)

    def _try_to_lower(self, uid: str, cores: float, *, is_new: bool) -> tuple[str, ...]:
        try:
            return self._lower(uid, cores, is_new=is_new)
        except (OSError, Outage) as error:
            return (f"pod {uid} cannot be held to {cores:g} cores: {error}",)

    def _clear_left_alone(self, uid: str) -> None:
        self._left_alone = {path: owner for path, owner in self._left_alone.items() if owner != uid}

    def _lower(self, uid: str, cores: float, *, is_new: bool) -> tuple[str, ...]:
        # 1. Read the limits in place.
        at = find_pod(self._files, self._layout, uid)
        if at is None:
            return self.release_pod(uid)  # closes its entries in the journal
        containers = {container.path: container for container in list_containers(self._files, self._layout, at.path)}
        now = {path: limit for path in (at.path, *containers) if (limit := self._read(path)) is not None}
        if at.path not in now:
            if find_pod(self._files, self._layout, uid) is not None:
                raise Outage(f"{at.path} has no CPU limit: the kernel offers none")
            return ()  # it has just ended

        # 2. Give up what is no longer the agent's.
        problems = [sentence for path, limit in now.items() if (sentence := self._close_foreign(uid, path, limit))]
        if is_new:
            self._clear_left_alone(uid)

        # 3. Find the limits wanted, from those before any throttle, and write them.
        before = {path: self._original(path, limit) for path, limit in now.items()}
        inside = {path: before[path] for path in containers if path in before}
        wanted = limits_within(cores, self._layout.version, (at.path, before[at.path]), inside)
        changes = [LimitChange(path=path, now=now[path], wanted=limit) for path, limit in wanted.items()]
        if is_new and self._takes_nothing(uid, changes, before):
            problems.append(f"pod {uid} cannot be held to {cores:g} cores: they are no less than it may use")
        for change in in_kernel_order([one for one in changes if one.path not in self._left_alone]):
            problems += self._change(uid, change, before[change.path], containers.get(change.path))
        return tuple(problems)

    def _takes_nothing(self, uid: str, changes: Sequence[LimitChange], before: Mapping[str, CpuLimit]) -> bool:
        """A reading that came late counted more cores than the limit lets the pod use."""
        is_lower = any(change.wanted.cores < before[change.path].cores for change in changes)
        return bool(changes) and not is_lower and uid not in self.lowered_pods()

    def _read(self, path: str) -> CpuLimit | None:
        try:
            return read_limit(self._files, self._layout, path)
        except OSError as error:
            if error.errno in ENDED:
                return None
            raise

    def _close_foreign(self, uid: str, path: str, now: CpuLimit) -> str | None:
        """Close the entry of a limit that is no longer the agent's. Return a sentence if another program set the
        value."""
        entry = self._journal.entry(ChangeKind.CPU_LIMIT, path)
        if entry is None:
            return None
        if is_another_start(self._files, self._layout, entry):
            self._journal.end(*entry.key)
            return None
        if now == journalled_limit(entry.original) or is_own(now, entry):
            return None
        self._journal.end(*entry.key)
        self._left_alone[path] = uid
        return f"the CPU limit of {path} was set to {now} by another program and is left so"

    def _original(self, path: str, now: CpuLimit) -> CpuLimit:
        entry = self._journal.entry(ChangeKind.CPU_LIMIT, path)
        return now if entry is None else journalled_limit(entry.original)

    def _change(
        self, uid: str, change: LimitChange, original: CpuLimit, container: ContainerCgroup | None
    ) -> tuple[str, ...]:
        before = self._journal.entry(ChangeKind.CPU_LIMIT, change.path)
        if change.wanted.cores >= original.cores:
            return () if before is None else self._put_back(before)
        started = None if container is None else started_ticks(self._files, self._layout, change.path)
        entry = JournalEntry(
            kind=ChangeKind.CPU_LIMIT,
            target=change.path,
            original=str(original),
            replaced=str(change.now),
            value=str(change.wanted),
            at_s=0.0,
            boot_id="",
            pod_uid=uid,
            container_id="" if container is None else container.id,
            started_ticks=started,
            burst_us=0 if before is None else before.burst_us,
        )
        try:
            self._write_lower(entry, change)
        except OSError as error:
            restore_burst(self._files, self._layout, self._journal.entry(*entry.key) or entry)
            self._restore_entry(entry, before)
            return () if error.errno in ENDED else (f"the CPU limit of {change.path} cannot be lowered: {error}",)
        return ()

    def _write_lower(self, entry: JournalEntry, change: LimitChange) -> None:
        """The kernel refuses a quota below the burst (koordlet sets one): then the burst goes first."""
        self._journal.begin(self._stamp(entry))
        try:
            write_limit(self._files, self._layout, change.path, change.wanted)
        except OSError as error:
            burst_us = read_burst(self._files, self._layout, change.path) if error.errno == errno.EINVAL else 0
            if burst_us == 0:
                raise
            self._journal.begin(self._stamp(replace(entry, burst_us=burst_us)))
            write_burst(self._files, self._layout, change.path, 0)
            write_limit(self._files, self._layout, change.path, change.wanted)

    def _restore_entry(self, entry: JournalEntry, before: JournalEntry | None) -> None:
        """Nothing was changed: give the journal its earlier entry back."""
        if before is None:
            self._journal.end(*entry.key)
        else:
            self._journal.begin(before)

    def _put_back(self, entry: JournalEntry) -> tuple[str, ...]:
        try:
            undone = put_back(self._files, self._layout, entry)
            self._journal.end(*entry.key)
        except (OSError, Outage) as error:
            return (f"the CPU limit of {entry.target} cannot be put back: {error}",)
        if undone is UndoOutcome.FOREIGN:
            return (f"the CPU limit of {entry.target} was set by another program and is left so",)
        return ()


def pods_first(entries: tuple[JournalEntry, ...]) -> tuple[JournalEntry, ...]:
    """Return the CPU limits among `entries` in the order that puts them back: pods before their containers."""
    limits = (entry for entry in entries if entry.kind is ChangeKind.CPU_LIMIT)
    return tuple(sorted(limits, key=lambda entry: (entry.target.count("/"), entry.target)))
