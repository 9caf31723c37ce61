"""Nothing of the agent's stays in resctrl, from any state: killed at any step, and beside other programs."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda_agent.host.files import Files, Tree
from coda_agent.resctrl.groups import Groups
from coda_agent.resctrl.remove import Removed
from coda_lab.emulators.resctrl.machine import Group
from tests.emulated import Emulated

UIDS = ("aaaa", "bbbb")


class Killed(BaseException):
    pass


class Mortal(Tree):
    """A tree whose user is killed just before the n-th system call that changes something."""

    left: list[int]

    def _spend(self) -> None:
        if self.left[0] == 0:
            raise Killed
        self.left[0] -= 1

    def write(self, relative: str, text: str) -> None:
        self._spend()
        super().write(relative, text)

    def mkdir(self, relative: str) -> None:
        self._spend()
        super().mkdir(relative)

    def rmdir(self, relative: str) -> None:
        self._spend()
        super().rmdir(relative)

    def rename(self, old: str, new: str) -> None:
        self._spend()
        super().rename(old, new)


def mortal(tree: Emulated, calls: int) -> Files:
    files = tree.files
    resctrl = Mortal(tree.root)
    object.__setattr__(resctrl, "left", [calls])
    files.resctrl = resctrl
    return files


def foreign_start(tree: Emulated) -> None:
    """Other programs' groups, with threads and limits of their own."""
    tree.machine.reset()
    for task in tuple(tree.machine.tasks.all()):
        tree.machine.tasks.exit(task.tid)  # type: ignore[union-attr]  # invented threads
    (foreign,) = tree.spawn("foreign")
    (watched,) = tree.spawn("watched")
    for path in ("BE", "BE/mon_groups/theirs", "mon_groups/nri"):
        tree.machine.add(*_parent(tree, path))
    tree.write("BE/schemata", "MB:0=40\n")
    tree.write("BE/tasks", f"{foreign}\n")
    tree.write("BE/mon_groups/theirs/tasks", f"{foreign}\n")
    tree.write("mon_groups/nri/tasks", f"{watched}\n")
    for uid in UIDS:
        tree.spawn(uid, threads=2)


def _parent(tree: Emulated, path: str) -> tuple[Group | None, str]:  # the mount's cache never sees the machine's resets
    control, _, name = path.rpartition("/mon_groups/")
    if path.startswith("mon_groups/"):
        return tree.machine.root, path.removeprefix("mon_groups/")
    return (tree.machine.groups[control], name) if name and control else (None, path)


def state(tree: Emulated) -> tuple[object, ...]:
    """All that can be told apart: groups, limits, and where every thread is (by load; tids differ between runs)."""
    machine = tree.machine
    groups = {group.path: dict(group.values.get("MB", {})) for group in machine.controls()}
    children = {child.path for group in machine.controls() for child in group.children.values()}
    homes = sorted((task.load, machine.groups_of(task)) for task in machine.tasks.all())
    return groups, children, homes


def everything(groups: Groups, tree: Emulated) -> None:
    """All that the agent ever does to groups."""
    for uid in UIDS:
        groups.add_pod(uid)
        groups.collect_threads(uid, tree.tids_of(uid))
    groups.add_throttle()
    groups.set_limit(0, 50)
    for uid in UIDS:
        groups.throttle_pod(uid, tree.tids_of(uid))
    groups.set_limit(0, 30)
    groups.release_pod(UIDS[0], tree.tids_of(UIDS[0]))
    groups.collect_threads(UIDS[1], tree.tids_of(UIDS[1]), recheck=True)
    groups.remove_pod(UIDS[0])
    groups.set_limit(0, 100)
    groups.release_pod(UIDS[1], tree.tids_of(UIDS[1]))
    groups.remove_throttle()
    groups.remove_all()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.integers(0, 60), again=st.integers(0, 60), can_rename=st.booleans())
def test_killed_before_any_system_call_and_again_while_restoring_the_end_is_the_start(
    intel: Emulated, calls: int, again: int, can_rename: bool
) -> None:
    foreign_start(intel)
    intel.machine.switches.can_rename = can_rename
    start = state(intel)
    for budget, work in ((calls, everything), (again, lambda groups, _: groups.remove_all())):
        try:
            work(Groups(mortal(intel, budget)), intel)
        except Killed:
            continue
    assert Groups(intel.files).remove_all().failures == ()
    assert state(intel) == start


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.integers(0, 60), can_rename=st.booleans())
def test_killed_before_any_system_call_doing_it_all_again_works(intel: Emulated, calls: int, can_rename: bool) -> None:
    foreign_start(intel)
    intel.machine.switches.can_rename = can_rename
    start = state(intel)
    try:
        everything(Groups(mortal(intel, calls)), intel)
    except Killed:
        everything(Groups(intel.files), intel)
    assert state(intel) == start


def test_the_schedule_of_kills_covers_every_call(intel: Emulated) -> None:
    for can_rename, least in ((True, 15), (False, 25)):
        foreign_start(intel)
        intel.machine.switches.can_rename = can_rename
        files = mortal(intel, 1000)
        everything(Groups(files), intel)
        spent = 1000 - files.resctrl.left[0]  # type: ignore[attr-defined]
        assert least <= spent <= 60


def test_foreign_groups_survive_the_agents_whole_life(intel: Emulated) -> None:
    foreign_start(intel)
    start = state(intel)
    everything(Groups(intel.files), intel)
    assert state(intel) == start
    assert not [
        line for line in intel.machine.log[7:] if "BE" in line or "nri" in line or line.startswith("schemata  ")
    ]


def test_a_foreign_group_inside_the_throttle_group_is_moved_out_before_it_goes(intel: Emulated) -> None:
    groups = Groups(intel.files)
    groups.add_throttle()
    intel.mkdir("coda-throttle/mon_groups/theirs")
    (tid,) = intel.spawn()
    intel.write("coda-throttle/tasks", f"{tid}\n")
    intel.write("coda-throttle/mon_groups/theirs/tasks", f"{tid}\n")

    groups.remove_all()

    assert intel.tids("mon_groups/theirs") == {tid}
    assert "coda-throttle" not in intel.names()


def test_a_group_that_will_not_go_limits_nothing_and_is_reported(intel: Emulated) -> None:
    groups = Groups(intel.files)
    groups.add_throttle()
    groups.add_pod("aaaa")
    groups.set_limit(0, 20)
    intel.machine.switches.errors["rmdir coda-throttle"] = errno.EIO

    restored = groups.remove_all()

    assert restored == Removed(
        removed=("mon_groups/coda-aaaa",), failures=("coda-throttle cannot be removed: Input/output error",)
    )
    assert groups.limits() == {0: 100, 1: 100}


def test_what_an_older_agent_left_goes_too(intel: Emulated) -> None:
    for path in ("coda-old", "BE", "BE/mon_groups/coda-x", "coda-old/mon_groups/coda-y"):
        intel.mkdir(path)
    assert set(Groups(intel.files).remove_all().removed) == {"coda-old", "BE/mon_groups/coda-x"}
    assert "BE" in intel.names()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: (path / "coda-x").mkdir(parents=True)])
def test_a_directory_that_is_no_resctrl_is_let_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "plain")
    before = sorted(tmp_path.rglob("*"))
    assert Groups(Files(resctrl=tmp_path / "plain")).remove_all() == Removed(removed=(), failures=())
    assert sorted(tmp_path.rglob("*")) == before


def test_restoring_does_not_wait_for_another_programs_lock(intel: Emulated) -> None:
    groups = Groups(intel.files)
    groups.add_throttle()
    with intel.files.resctrl.locked():
        assert groups.remove_all().removed == ("coda-throttle",)
