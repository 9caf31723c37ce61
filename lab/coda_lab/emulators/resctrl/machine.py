"""The emulated machine: hardware ids, groups, threads and limits, and the kernel's rules about them.

Commands do what the kernel does, refusals included (`Refused` carries errno and the text of last_cmd_status). Time
moves only by `advance`. Source: `fs/resctrl/rdtgroup.c`; numbers in docstrings are those of the project's list of
behaviours.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from coda_lab.emulators.load import Load
from coda_lab.emulators.resctrl import schemata
from coda_lab.emulators.resctrl.counting import Counters
from coda_lab.emulators.resctrl.ids import Ids
from coda_lab.emulators.resctrl.profiles import Monitoring, Profile
from coda_lab.emulators.resctrl.schemata import Refused
from coda_lab.emulators.resctrl.tasks import FakeTasks, RealTasks, Task

MON_GROUPS = "mon_groups"


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """A directory with a class of service (`parent` None) or, below one, only a monitoring id."""

    name: str
    parent: Group | None
    closid: int
    rmid: int
    values: schemata.Values
    children: dict[str, Group] = field(default_factory=dict)

    @property
    def rmids(self) -> tuple[int, ...]:
        """Its monitoring ids, the children's included."""
        return self.rmid, *(child.rmid for child in self.children.values())

    @property
    def path(self) -> str:
        """Its directory, relative to the mount; the root's is empty."""
        return self.name if self.parent is None else f"{self.parent.path}/{MON_GROUPS}/{self.name}".lstrip("/")


@dataclass(slots=True, kw_only=True)
class Switches:
    """Switches of the kernel for tests. Patterns are shell-like, over "<operation> <path>"."""

    can_rename: bool = True  # kernels since 6.5
    takes_lists: bool = True  # several tids in one write
    pads_values: bool = False  # older kernels align values
    sees_tasks: bool = True  # False: the reader is in another pid namespace
    limbo_s: float = 2.0
    errors: dict[str, int] = field(default_factory=dict)  # pattern -> errno
    words: dict[str, str] = field(default_factory=dict)  # pattern -> text instead of the file's


class Machine:
    """Hardware, kernel and threads. Every method may be called from any thread."""

    def __init__(self, profile: Profile, tasks: FakeTasks | RealTasks | None = None) -> None:
        self.profile = profile
        self.tasks = FakeTasks() if tasks is None else tasks
        self.switches = Switches()
        self.lock = threading.RLock()
        self.now_s = 0.0
        self.loads: dict[str, Load] = {}
        self.rates: dict[str, float] = {}  # served, bytes/s by load
        self.log: list[str] = []  # successful commands, in order
        self.once_before: list[tuple[str, Callable[[], None]]] = []  # pattern, what happens just before it
        self.is_mounted = False
        self.resources = schemata.resources_of(profile)
        self.reset()

    def reset(self) -> None:
        """As after unmounting (15): no groups, all threads in the root, nothing limited."""
        monitoring = self.profile.monitoring
        self.status = "ok"
        self.closids = Ids(self.profile.closids, "CLOSIDs")
        self.rmids = Ids(monitoring.rmids if monitoring is not None else 0, "RMIDs")
        self.counters = Counters(monitoring or Monitoring(), self.profile.domains)
        self.hidden_percents: dict[tuple[int, int], float] = {}  # of the software controller, by class and domain
        self.root = Group(name="", parent=None, closid=0, rmid=0, values=self._defaults())
        self.groups: dict[str, Group] = {}
        self.counters.begin(0)
        for task in self.tasks.all():
            task.closid = task.rmid = 0

    def controls(self) -> tuple[Group, ...]:
        """The root and every group with a class of its own."""
        return self.root, *self.groups.values()

    def add(self, parent: Group | None, name: str) -> None:
        """mkdir (1, 2): below the root (`parent` None) a control group, else a monitoring group of `parent`."""
        with self._command(f"mkdir {name}"):
            if parent is None:
                self.groups[name] = self._new_control(name)
            else:
                rmid = self._begin(self.rmids.take(self.now_s))
                parent.children[name] = Group(name=name, parent=parent, closid=parent.closid, rmid=rmid, values={})

    def remove(self, group: Group) -> None:
        """rmdir (3): threads go to the root or to the parent; children vanish; ids become free."""
        heir = self.root if group.parent is None else group.parent
        gone = group.rmids
        for task in self.tasks.all():
            if (group.parent is None and task.closid == group.closid) or task.rmid == group.rmid:
                task.closid, task.rmid = heir.closid, heir.rmid
        if group.parent is None:
            del self.groups[group.name]
            self.closids.give(group.closid, self.now_s)
        else:
            del group.parent.children[group.name]
        for rmid in gone if self.profile.monitoring is not None else ():
            self.counters.end(rmid)
            self.rmids.give(rmid, self.now_s + self.switches.limbo_s)
        self.log.append(f"rmdir {group.path}")

    def move(self, group: Group, parent: Group, name: str) -> None:
        """rename (4): a monitoring group, its threads and its counters go below another control group."""
        with self._command(f"rename {group.path} {parent.path}/{MON_GROUPS}/{name}"):
            if not self.switches.can_rename:
                raise Refused(errno.EPERM)
            if group.parent is None:
                raise Refused(errno.EPERM, "Source must be a MON group")
            del group.parent.children[group.name]
            group.name, group.parent, group.closid = name, parent, parent.closid
            parent.children[name] = group
            for task in self.tasks.all():
                if task.rmid == group.rmid:
                    task.closid = group.closid

    def write_tasks(self, group: Group, text: str, writer: int) -> None:
        """A write to `tasks` (5, 6, 7)."""
        with self._command(f"tasks {group.path} {text.strip()}"):
            if not self.switches.takes_lists and "," in text:
                raise Refused(errno.EINVAL)
            while text and text[0] != "\n":
                word, _, text = text.partition(",")
                self._assign(group, word.strip(), writer)

    def write_schemata(self, group: Group, text: str) -> None:
        """A write to `schemata` (8, 11)."""
        if not text.endswith("\n"):
            raise Refused(errno.EINVAL)  # before the status is cleared
        with self._command(f"schemata {group.path} {text.strip()}"):
            schemata.write(self.resources, group.values, text)

    def write_assignments(self, group: Group, text: str) -> None:
        """A write to `mbm_L3_assignments`."""
        if not text.endswith("\n"):
            raise Refused(errno.EINVAL)
        with self._command(f"assign {group.path} {text.strip()}"):
            self.counters.assign(group.rmid, text)

    def members(self, group: Group) -> tuple[int, ...]:
        """The tids that reading `tasks` lists; a control group is empty where nothing can be controlled."""
        if not self.switches.sees_tasks or (group.parent is None and not self.profile.closids):
            return ()
        if group.parent is None:
            return tuple(task.tid for task in self.tasks.all() if task.closid == group.closid)
        return tuple(task.tid for task in self.tasks.all() if task.rmid == group.rmid)

    def groups_of(self, task: Task) -> str:
        """The text of /proc/<tid>/cpu_resctrl_groups."""
        control = next(group for group in self.controls() if group.closid == task.closid)
        child = next((child.name for child in control.children.values() if child.rmid == task.rmid), "")
        return f"res:{control.name or '/'}\nmon:{child}\n"

    def _new_control(self, name: str) -> Group:
        closid = self.closids.take(self.now_s)
        rmid = 0
        if self.profile.monitoring is not None:
            try:
                rmid = self._begin(self.rmids.take(self.now_s))
            except Refused:
                self.closids.give(closid, self.now_s)
                raise
        return Group(name=name, parent=None, closid=closid, rmid=rmid, values=self._defaults())

    def _begin(self, rmid: int) -> int:
        self.counters.begin(rmid)
        return rmid

    def _defaults(self) -> schemata.Values:
        return {resource.name: dict.fromkeys(self.profile.domains, resource.default) for resource in self.resources}

    def _assign(self, group: Group, word: str, writer: int) -> None:
        try:
            tid = _number(word)
        except ValueError:
            raise Refused(errno.EINVAL, f"Task list parsing error pid {word}") from None
        if tid < 0:
            raise Refused(errno.EINVAL, f"Invalid pid {tid}")
        task = self.tasks.find(tid) if tid else self.tasks.adopt(writer)
        if task is None or (tid and not self.switches.sees_tasks):
            raise Refused(errno.ESRCH, f"No task {tid}\nError while processing task {tid}")
        if group.parent is not None and task.closid != group.parent.closid:
            words = f"Can't move task to different control group\nError while processing task {tid}"
            raise Refused(errno.EINVAL, words)
        task.closid, task.rmid = group.closid, group.rmid

    @contextmanager
    def _command(self, text: str) -> Iterator[None]:
        """last_cmd_status (11): cleared by each command, and what the refusal says after it."""
        self.status = "ok"
        try:
            yield
        except Refused as refusal:
            self.status = refusal.status or "ok"
            raise
        self.log.append(text)


def _number(word: str) -> int:
    """As kstrtoint with base 0: leading 0 is octal, 0x hexadecimal. Raises ValueError."""
    digits = word.removeprefix("-").removeprefix("+")
    if not digits.isascii() or not digits.isalnum():
        raise ValueError(word)
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" and digits != "0" else 10
    number = int(digits, base)
    if number > 0x7FFFFFFF:
        raise ValueError(word)
    return -number if word.startswith("-") else number
