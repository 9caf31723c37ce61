"""Moves a pod's threads into its group, except those in another program's group.

The kernel moves single threads. Threads that a moved thread clones follow it; those of an exec by the runtime do not.
So a pod's threads are listed again until a pass finds no new one, and again in every window."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from coda_agent.host import Files
from coda_agent.resctrl.layout import MON_GROUPS, NO_GROUPS, THROTTLE, inside, is_ours

ListThreads = Callable[[], frozenset[int]]  # lists all threads of a pod, again at every call
PLACE = "cpu_resctrl_groups"  # in a thread's directory of /proc: its groups; kernels since 5.6 may have it
PASSES = 5  # a pod that forks faster is finished in the next window


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """A group to fill: its directory, and the control group around it ("" is the root)."""

    directory: str
    control: str

    @property
    def name(self) -> str:
        """The group's own name."""
        return self.directory.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPlace:
    """Where a thread is: control group ("" is the root) and monitoring group ("" is none)."""

    control: str
    group: str

    @property
    def is_foreign(self) -> bool:
        """True if another program has put the thread there."""
        return bool((self.control and not is_ours(self.control)) or (self.group and not is_ours(self.group)))


class Members:
    """The threads of groups, for kernels that do not tell a thread's. What is asked for is read once.

    Right for threads that were listed before; those that others move meanwhile are found by a later recheck."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @cached_property
    def foreign(self) -> frozenset[int]:
        """Those in another program's group, control or monitoring; none if the kernel tells them itself."""
        if self._files.proc.exists(f"1/{PLACE}"):
            return frozenset()  # the threads it does not tell have ended
        return frozenset(tid for group in _foreign_groups(self._files) for tid in self._read(group))

    @cached_property
    def root(self) -> frozenset[int]:
        """Those in the root."""
        return _members(self._files, "")

    @cached_property
    def throttle(self) -> frozenset[int]:
        """Those in the throttle group."""
        return _members(self._files, THROTTLE)

    def _read(self, group: str) -> frozenset[int]:
        try:
            return _members(self._files, group)
        except OSError as failure:
            if failure.errno != errno.ENODEV:
                raise
            return frozenset()  # it ends while it is read


def fill_group(files: Files, target: TaskGroup, list_threads: ListThreads, known: set[int], foreign: set[int]) -> bool:
    """Move the threads that are not `known` into `target`, and update `known`. False: the last pass still found new
    ones.

    `foreign`: updated to those of them that another program keeps in a group of its own, and that stay there.

    Raises OSError: ENOENT or ENODEV if the group is gone, and every error that is not the end of a thread. Cost: one
    read and up to two writes per new thread. Where the kernel does not tell a thread's groups: every `tasks` of other
    programs, and the root's, once per pass."""
    for _ in range(PASSES):
        current = list_threads()
        known &= current
        foreign &= known
        fresh = current - known
        if not fresh:
            return True
        members = Members(files)
        known |= {tid for tid in sorted(fresh) if _move_thread(files, target, tid, foreign, members)}
    return not list_threads() - known


def evacuate(files: Files, list_threads: ListThreads) -> None:
    """Move the pod's threads in the throttle group, if any, back into the root."""
    for tid in sorted(list_threads() & _members(files, THROTTLE)):
        _write(files, "tasks", tid)


def _move_thread(files: Files, target: TaskGroup, tid: int, foreign: set[int], members: Members) -> bool:
    """True if the thread needs no more work: it is in, it has ended, or it is another program's (then in `foreign`)."""
    place = _place_of(files, tid)
    if place is None and tid not in members.foreign:
        return _move_unseen(files, target, tid, members)
    if place is None or place.is_foreign:
        foreign.add(tid)
        return True
    if place == ThreadPlace(control=target.control, group=target.name):
        return True
    if place.control != target.control and not _write(files, inside(target.control, "tasks"), tid):
        return True
    return _write_to_group(files, target, tid)


def _move_unseen(files: Files, target: TaskGroup, tid: int, members: Members) -> bool:
    """For kernels that do not tell a thread's groups: the group refuses a thread of another control group."""
    if _write_to_group(files, target, tid):
        return True
    if tid not in (members.root if target.control == THROTTLE else members.throttle):
        return True
    return _write(files, inside(target.control, "tasks"), tid) is False or _write_to_group(files, target, tid)


def _write_to_group(files: Files, target: TaskGroup, tid: int) -> bool:
    """False: the thread is in another control group (perhaps since a moment ago)."""
    try:
        _write(files, f"{target.directory}/tasks", tid)
    except OSError as failure:
        if failure.errno != errno.EINVAL:
            raise
        return False
    return True


def _write(files: Files, path: str, tid: int) -> bool:
    """False: the thread has ended. One thread per write, which every kernel takes."""
    if tid <= 0:
        return False  # 0 would move the agent itself
    try:
        files.resctrl.write(path, f"{tid}\n")
    except ProcessLookupError:
        return False
    return True


def _place_of(files: Files, tid: int) -> ThreadPlace | None:
    """None: the kernel does not tell, or the thread has ended."""
    try:
        lines = files.proc.read_text(f"{tid}/{PLACE}", most_bytes=4096).splitlines()
    except OSError:
        return None
    words = dict(line.split(":", 1) for line in lines if ":" in line)
    if not words.get("res"):
        return None
    return ThreadPlace(control=words["res"].removeprefix("/"), group=words.get("mon", ""))


def _foreign_groups(files: Files) -> Iterator[str]:
    """The groups of other programs. A control group's threads are also those of the groups in it."""
    for control in ("", *_listed(files, "")):
        if control in NO_GROUPS:
            continue
        if control and not is_ours(control):
            yield control
            continue
        place = inside(control, MON_GROUPS)
        yield from (f"{place}/{name}" for name in _listed(files, place) if not is_ours(name))


def _listed(files: Files, directory: str) -> tuple[str, ...]:
    try:
        return files.resctrl.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _members(files: Files, control: str) -> frozenset[int]:
    try:
        lines = files.resctrl.read_text(inside(control, "tasks")).split()
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    return frozenset(int(line) for line in lines if line.isascii() and line.isdecimal())
