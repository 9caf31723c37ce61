"""The machine as directories and files: kind, content and accepted writes of each path.

Paths are relative to the mount, without a leading slash; the root is "". Beside the kernel's files there is an unlisted
directory `.proc` with parts of /proc (`mounts`, `<tid>/cpu_resctrl_groups`, `<tid>/cgroup`), for programs whose proc
root can be chosen.
"""

from __future__ import annotations

import errno
import fnmatch
from dataclasses import dataclass
from pathlib import Path

from coda_lab.emulators.resctrl import schemata
from coda_lab.emulators.resctrl.counting import LOCAL, TOTAL
from coda_lab.emulators.resctrl.info import Branch, info_of
from coda_lab.emulators.resctrl.machine import MON_GROUPS, Group, Machine
from coda_lab.emulators.resctrl.profiles import Monitoring
from coda_lab.emulators.resctrl.schemata import Refused

PROC = ".proc"
LONGEST_WRITE = 4096
CPUS = "ffffffff"


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed path: a group's directory and the `rest` inside it, empty for the directory itself."""

    group: Group
    rest: tuple[str, ...]


class Tree:
    """The file operations. Every one raises OSError as the kernel would."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def listing(self, path: str) -> list[str]:
        """The names in a directory. ENOTDIR: it is a file."""
        with self._entering("readdir", path):
            branch = self._branch(path)
            if not isinstance(branch, dict):
                raise Refused(errno.ENOTDIR)
            return [name for name in branch if name != PROC]

    def is_directory(self, path: str) -> bool:
        """True if the path, which must exist (else ENOENT), is a directory."""
        with self._machine.lock:
            return isinstance(self._branch(path), dict)

    def read(self, path: str) -> str:
        """The present content of the file."""
        with self._entering("read", path):
            for pattern, word in self._machine.switches.words.items():
                if fnmatch.fnmatchcase(path, pattern):
                    return word
            branch = self._branch(path)
            if isinstance(branch, dict):
                raise Refused(errno.EISDIR)
            if path.startswith(PROC):
                return self._proc(path.split("/")[1:])
            return self._text(self._place(path)) if branch is None else branch

    def write(self, path: str, text: str, writer: int) -> None:
        """One write(2) by thread `writer`; `text` has one character per byte."""
        with self._entering("write", path):
            if len(text) > LONGEST_WRITE:
                raise Refused(errno.E2BIG)
            if isinstance(self._branch(path), dict):
                raise Refused(errno.EISDIR)
            place = self._place(path)
            if place.rest == ("tasks",):
                self._machine.write_tasks(place.group, text, writer)
            elif place.rest == ("schemata",):
                self._machine.write_schemata(place.group, text)
            elif place.rest == ("mbm_L3_assignments",):
                self._machine.write_assignments(place.group, text)
            else:
                raise Refused(errno.EACCES)

    def mkdir(self, path: str) -> None:
        """Create a group."""
        with self._entering("mkdir", path):
            parent, _, name = path.rpartition("/")
            if "\n" in name:
                raise Refused(errno.EINVAL)
            if name in self._listing_of(parent):
                raise Refused(errno.EEXIST)
            if parent == "" and self._machine.profile.closids:
                self._machine.add(None, name)
            elif self._is_mon_groups(parent) and name != MON_GROUPS:
                self._machine.add(self._place(parent).group, name)
            else:
                raise Refused(errno.EPERM)

    def rmdir(self, path: str) -> None:
        """Remove a group with all that is in it."""
        with self._entering("rmdir", path):
            if not isinstance(self._branch(path), dict):
                raise Refused(errno.ENOTDIR)
            place = self._place(path)
            if place.rest or place.group is self._machine.root or path.startswith(PROC):
                raise Refused(errno.EPERM)
            self._machine.remove(place.group)

    def rename(self, old: str, new: str) -> None:
        """Move a monitoring group."""
        with self._entering("rename", old):
            place = self._place(old)
            parent, _, name = new.rpartition("/")
            if place.rest or place.group.parent is None:
                raise Refused(errno.EPERM)
            if not self._is_mon_groups(parent) or name == MON_GROUPS:
                raise Refused(errno.EPERM)
            if name in self._listing_of(parent):
                raise Refused(errno.EEXIST)
            self._machine.move(place.group, self._place(parent).group, name)

    def _entering(self, operation: str, path: str) -> _Entry:
        return _Entry(self._machine, f"{operation} {path}")

    def _is_mon_groups(self, path: str) -> bool:
        is_named = path == MON_GROUPS or path.endswith("/" + MON_GROUPS)
        return is_named and self._place(path).rest == (MON_GROUPS,) and self._machine.profile.monitoring is not None

    def _listing_of(self, path: str) -> Branch:
        branch = self._branch(path)
        if not isinstance(branch, dict):
            raise Refused(errno.ENOTDIR)
        return branch

    def _place(self, path: str) -> Place:
        parts = tuple(path.split("/")) if path else ()
        group = self._machine.root
        if parts and parts[0] in self._machine.groups:
            group, parts = self._machine.groups[parts[0]], parts[1:]
        if len(parts) > 1 and parts[0] == MON_GROUPS:
            if parts[1] not in group.children:
                raise _absent()
            group, parts = group.children[parts[1]], parts[2:]
        return Place(group, parts)

    def _branch(self, path: str) -> Branch | str | None:
        """The directory or file at a path. ENOENT: there is none."""
        if path == PROC or path.startswith(PROC + "/"):
            return self._proc_branch(path.split("/")[1:])
        place = self._place(path)
        branch: Branch | str | None = self._directory(place.group, place.rest[:1])
        for name in place.rest:
            if not isinstance(branch, dict) or name not in branch:
                raise _absent()
            branch = branch[name]
        return branch

    def _directory(self, group: Group, wanted: tuple[str, ...]) -> Branch:
        """The content of a group's directory; subdirectories are filled in only where `wanted`."""
        profile = self._machine.profile
        files: Branch = {"tasks": None, "cpus": CPUS if group is self._machine.root else "0", "cpus_list": ""}
        if group.parent is None and profile.closids:
            files |= {"schemata": None, "size": "", "mode": "shareable\n"}
        if profile.monitoring is not None:
            files["mon_data"] = self._counters(profile.monitoring) if wanted == ("mon_data",) else {}
            if profile.monitoring.counters is not None:
                files["mbm_L3_assignments"] = None
        if profile.monitoring is not None and group.parent is None:
            files[MON_GROUPS] = {name: {} for name in group.children}
            if profile.limiting is not None and profile.limiting.in_mib:
                files["mba_MBps_event"] = TOTAL + "\n"
        if group is self._machine.root:
            files["info"] = info_of(self._machine) if wanted == ("info",) else {}
            files |= {name: {} for name in self._machine.groups}
        return files

    def _counters(self, monitoring: Monitoring) -> Branch:
        return {f"mon_L3_{domain:02}": self._domain(monitoring, domain) for domain in self._machine.profile.domains}

    def _domain(self, monitoring: Monitoring, domain: int) -> Branch:
        events: Branch = dict.fromkeys(monitoring.events, None)
        nodes = monitoring.nodes_per_cache
        if nodes == 1:
            return events
        return events | {f"mon_sub_L3_{domain * nodes + node:02}": dict(events) for node in range(nodes)}

    def _text(self, place: Place) -> str:
        machine, group = self._machine, place.group
        if place.rest == ("tasks",):
            return "".join(f"{tid}\n" for tid in machine.members(group))
        if place.rest == ("schemata",):
            return schemata.show(machine.resources, group.values, padded=machine.switches.pads_values)
        if place.rest == ("mbm_L3_assignments",):
            return machine.counters.assignments(group.rmid)
        return self._count(group, place.rest[1:]) + "\n"

    def _count(self, group: Group, rest: tuple[str, ...]) -> str:
        """The counter at `mon_L3_01/.../<event>`; the sum leaves out words that a test put on a child."""
        domain, event = int(rest[0].removeprefix("mon_L3_")), rest[-1]
        if event not in (TOTAL, LOCAL):
            return "65536"
        monitoring = self._machine.profile.monitoring
        node = None
        if len(rest) == 3 and monitoring is not None:
            node = int(rest[1].removeprefix("mon_sub_L3_")) - domain * monitoring.nodes_per_cache
        tail = "/".join(("mon_data", *rest))
        silent = {child.rmid for child in group.children.values() if self._is_silenced(f"{child.path}/{tail}")}
        rmids = [rmid for rmid in group.rmids if rmid not in silent]
        return self._machine.counters.read(rmids, domain, event, node)

    def _is_silenced(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self._machine.switches.words)

    def _proc_branch(self, parts: list[str]) -> Branch | str | None:
        if not parts:
            return {"mounts": None, **{str(task.tid): {} for task in self._machine.tasks.all()}}
        if parts == ["mounts"]:
            return None
        if not parts[0].isdecimal() or self._machine.tasks.find(int(parts[0])) is None:
            raise _absent()
        files: Branch = {"cpu_resctrl_groups": None, "cgroup": None}
        if len(parts) == 1:
            return files
        if len(parts) > 2 or parts[1] not in files:
            raise _absent()
        return None

    def _proc(self, parts: list[str]) -> str:
        machine = self._machine
        if parts == ["mounts"]:
            line = f"resctrl /sys/fs/resctrl resctrl {machine.profile.mount_options} 0 0\n"
            return "proc /proc proc rw 0 0\n" + (line if machine.is_mounted else "")
        task = machine.tasks.find(int(parts[0]))
        if task is None:
            raise _absent()
        if parts[1] == "cgroup":
            return task.cgroup or Path(f"/proc/{task.tid}/cgroup").read_text()
        return machine.groups_of(task)


class _Entry:
    """The lock around one operation, with a test's action just before it or instead of it."""

    def __init__(self, machine: Machine, operation: str) -> None:
        self._machine = machine
        self._operation = operation

    def __enter__(self) -> None:
        self._machine.lock.acquire()
        try:
            self._disturb()
        except BaseException:
            self._machine.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._machine.lock.release()

    def _disturb(self) -> None:
        pending = self._machine.once_before
        for entry in [one for one in pending if fnmatch.fnmatchcase(self._operation, one[0])]:
            pending.remove(entry)
            entry[1]()
        for pattern, number in self._machine.switches.errors.items():
            if fnmatch.fnmatchcase(self._operation, pattern):
                raise Refused(number)


def _absent() -> Refused:
    """A new exception each time: it keeps every frame it went through."""
    return Refused(errno.ENOENT)
