"""A node with pods, foreign owners of limits and groups, and an agent on it that can be killed and started again.

Other programs do the same to a twin without agent: after a restart both must be equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from coda.contention import Action, Means, ThrottleReason
from coda_agent.cgroups.layout import find_layout, find_pod
from coda_agent.cgroups.threads import threads_of
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import UndoJournal
from coda_agent.resctrl.groups import Groups
from coda_agent.throttling.actuator import Actuator
from coda_agent.throttling.restore import Restoration, boot_id, restore_node
from coda_lab.emulators.cgroups.file_access import files_over
from coda_lab.emulators.cgroups.kernel import Kernel
from coda_lab.emulators.cgroups.kubelet import Kubelet, Quality, Setup
from coda_lab.emulators.cgroups.proc import ProcTree
from coda_lab.emulators.cgroups.tree import V1_DIRECTORY, CgroupTree
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.profiles import PROFILES
from coda_lab.emulators.resctrl.tasks import FakeTasks
from coda_lab.emulators.resctrl.tree import Tree as ResctrlTree
from tests.agent.undo.killing import KillingDisk, Steps, killing_files

UIDS = tuple(f"0a1b2c3d-{number}111-4222-8333-444455556666" for number in range(3))
FOREIGN_CORES = 3.33  # no value of the agent's


@dataclass(frozen=True)
class Kind:
    """What a node is like."""

    version: int = 2
    setup: Setup = field(default_factory=Setup)
    profile: str = "intel"
    can_rename: bool = True


class World:
    """One node without agent."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        tasks = FakeTasks()
        self.machine = Machine(PROFILES[kind.profile], tasks)
        self.machine.switches.can_rename = kind.can_rename
        self.machine.switches.limbo_s = 0.0
        self.tree = CgroupTree(Kernel(kind.version), tasks)
        self.kubelet = Kubelet(self.tree, kind.setup)
        self.proc = ProcTree(self.tree, self.machine.groups_of)
        self.files = files_over(cgroup=self.tree, proc=self.proc, machine=self.machine)
        self.tasks = tasks
        self.kubelet.start(UIDS[0], Quality.BURSTABLE, {"main": 8.0, "side": 2.0})
        self.kubelet.start(UIDS[1], Quality.BEST_EFFORT, {"main": None})
        self.kubelet.start(UIDS[2], Quality.GUARANTEED, {"main": 4.0})
        self._foreigners()

    def _foreigners(self) -> None:
        """Another program's classes, with a thread of a pod's in one of its groups."""
        tree = ResctrlTree(self.machine)
        (theirs,) = self.tasks.spawn("theirs")
        tree.mkdir("BE")
        tree.write("BE/tasks", f"{theirs}\n", 1)
        tree.write("BE/schemata", f"MB:{self.machine.profile.domains[0]}={self.limit(1)}\n", 1)
        tree.mkdir("mon_groups/theirs")
        (watched,) = self.kubelet.execute(UIDS[1], "main")
        tree.write("mon_groups/theirs/tasks", f"{watched}\n", 1)

    def limit(self, steps_down: int) -> int:
        """A bandwidth limit that the hardware knows; 0 is unlimited."""
        limiting = self.machine.profile.limiting
        assert limiting is not None
        if limiting.in_mib:
            return 4_294_967_295 if steps_down == 0 else 9000 - 1000 * steps_down
        return limiting.most if steps_down == 0 else limiting.most - steps_down * max(limiting.granularity, 10)

    def write_limit(self, path: str, cores: float) -> None:
        """As some other program would."""
        if self.kind.version == 2:
            self.tree.write(f"{path}/cpu.max", str(round(cores * 100_000)))
        else:
            self.tree.write(f"{V1_DIRECTORY}/{path}/cpu.cfs_quota_us", str(round(cores * 100_000)))

    def state(self) -> Mapping[str, object]:
        """All that the agent may not leave changed."""
        groups = self.machine.controls()
        return {
            "limits": {group.path: (group.quota_us, group.period_us) for group in self.tree.kernel.root.walk()},
            "classes": {group.name: (group.values, sorted(group.children)) for group in groups},
            "threads": {task.tid: (self.machine.groups_of(task), task.cgroup) for task in self.tasks.all()},
        }


class AgentWorld(World):
    """One node with an agent."""

    def __init__(self, kind: Kind, state: Path) -> None:
        super().__init__(kind)
        self._state = state
        self._journal: UndoJournal | None = None
        self.restored: Restoration | None = None
        self.disk_is_full = False

    def start_agent(self, steps: Steps | None = None) -> None:
        """A new process: takes the journal and restores before anything else."""
        steps = steps or Steps()
        files = killing_files(self.files, steps)
        self._journal = None
        self._journal = journal = UndoJournal(KillingDisk(StateDir(self._state), steps, is_full=self.disk_is_full))
        self._files = files
        self._layout = find_layout(files)
        self._groups = Groups(files)
        self._boot = boot_id(files)
        self.restored = self.restore()
        self.actuator = Actuator(
            files=files,
            layout=self._layout,
            groups=self._groups,
            journal=journal,
            now_s=lambda: 1000.0,
            boot_id=self._boot,
        )

    def restore(self) -> Restoration:
        assert self._journal is not None
        return restore_node(
            files=self._files, layout=self._layout, groups=self._groups, journal=self._journal, boot=self._boot
        )

    def bury_agent(self) -> None:
        """What the kernel does for a dead process: its lock is free."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    @property
    def open_entries(self) -> int:
        assert self._journal is not None
        return len(self._journal.entries)

    def sense(self, *, recheck: bool = False) -> None:
        """Every pod has its monitoring group, with all its threads; `recheck`: also threads already moved."""
        for uid in sorted(self.kubelet.pods):
            self._groups.add_pod(uid)
            self._groups.collect_threads(uid, partial(self._tids, uid), recheck=recheck)

    def _tids(self, uid: str) -> frozenset[int]:
        assert self._layout is not None
        at = find_pod(self._files, self._layout, uid)
        return frozenset() if at is None else threads_of(self._files, self._layout, at.path)


AgentStep = Callable[[AgentWorld], object]
Event = Callable[[World], object]


def throttle(world: World, socket: int, pods: tuple[int, ...], steps_down: int, *, ends: bool = False) -> Action:
    """Limit the bandwidth of pods by number in one of the node's domains."""
    return Action(
        means=Means.BANDWIDTH,
        socket=world.machine.profile.domains[socket],
        pods=tuple(UIDS[number] for number in pods),
        value=world.limit(0 if ends else steps_down),
        ends=ends,
        reason=ThrottleReason.CONTENDED,
        jobs=(),
    )


def hold(number: int, cores: float, *, ends: bool = False) -> Action:
    """Hold one pod to `cores`."""
    return Action(
        means=Means.CORES,
        socket=0,
        pods=(UIDS[number],),
        value=cores,
        ends=ends,
        reason=ThrottleReason.CONTENDED,
        jobs=(),
    )
