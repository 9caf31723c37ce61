"""Threads go into their pod's group while the pod lives its life."""

import errno
import os

import pytest

from coda_agent.host.files import Files
from coda_agent.resctrl.groups import RECHECK_EVERY, GroupOutcome, Groups
from coda_lab.emulators.resctrl.tasks import FakeTasks
from tests.emulated import Emulated

UID = "pod-1"
FREE, THROTTLED = f"mon_groups/coda-{UID}", f"coda-throttle/mon_groups/coda-{UID}"


class Forking:
    """Lists a pod's threads, and right after each listing some of them clone."""

    def __init__(self, tree: Emulated, per_listing: list[int]) -> None:
        assert isinstance(tree.machine.tasks, FakeTasks)
        self.tasks = tree.machine.tasks
        self.list_tids = tree.tids_of(UID)
        self.per_listing = per_listing

    def __call__(self) -> frozenset[int]:
        listed = self.list_tids()
        if self.per_listing:
            youngest = max(listed)
            self.tasks.clone(youngest, self.per_listing.pop(0))
        return listed


@pytest.mark.parametrize("can_rename", [True, False])
def test_two_thousand_threads_forking_while_they_are_moved_all_arrive(intel: Emulated, can_rename: bool) -> None:
    intel.machine.switches.can_rename = can_rename
    intel.load(UID, gb_per_s=1, threads=2000)
    groups = Groups(intel.files)
    groups.add_pod(UID)
    groups.add_throttle()

    groups.collect_threads(UID, Forking(intel, [50, 20, 5]))
    groups.throttle_pod(UID, Forking(intel, [50, 20, 5]))
    for _ in range(2):  # the windows after it
        groups.collect_threads(UID, intel.tids_of(UID))

    assert len(intel.tids_of(UID)()) > 2075
    assert intel.tids(THROTTLED) == intel.tids("coda-throttle") == intel.tids_of(UID)()


def test_a_pod_that_forks_without_end_is_followed_a_bounded_while(intel: Emulated) -> None:
    intel.load(UID, gb_per_s=1, threads=4)
    groups = Groups(intel.files)
    groups.add_pod(UID)
    endless = Forking(intel, [3] * 1000)

    assert groups.collect_threads(UID, endless) is GroupOutcome.RETRY
    assert len(endless.per_listing) > 980
    assert groups.collect_threads(UID, intel.tids_of(UID)) is GroupOutcome.DONE
    assert intel.tids(FREE) == intel.tids_of(UID)()


@pytest.mark.parametrize("tells", [True, False], ids=["kernel tells a thread's groups", "kernel does not"])
@pytest.mark.parametrize("throttled", [False, True])
def test_newcomers_by_exec_join_their_group_wherever_it_is(intel: Emulated, throttled: bool, tells: bool) -> None:
    intel.load(UID, gb_per_s=1, threads=2)
    groups = Groups(intel.files if tells else Files(proc=intel.root / "none", resctrl=intel.root))
    groups.add_pod(UID)
    groups.add_throttle()
    groups.collect_threads(UID, intel.tids_of(UID))
    if throttled:
        groups.throttle_pod(UID, intel.tids_of(UID))
    newcomers = intel.spawn(UID, threads=3)

    assert groups.collect_threads(UID, intel.tids_of(UID)) is GroupOutcome.DONE

    where = THROTTLED if throttled else FREE
    assert set(newcomers) < intel.tids(where) == intel.tids_of(UID)()


@pytest.mark.parametrize("tells", [True, False], ids=["kernel tells a thread's groups", "kernel does not"])
def test_threads_that_another_program_controls_stay_with_it(intel: Emulated, tells: bool) -> None:
    mine, theirs = intel.load(UID, gb_per_s=1, threads=2)
    intel.mkdir("BE")
    intel.write("BE/tasks", f"{theirs}\n")
    groups = Groups(intel.files if tells else Files(proc=intel.root / "none", resctrl=intel.root))
    groups.add_pod(UID)
    groups.add_throttle()

    assert groups.collect_threads(UID, intel.tids_of(UID)) is GroupOutcome.DONE
    assert groups.throttle_pod(UID, intel.tids_of(UID)) is GroupOutcome.DONE
    assert groups.collect_threads(UID, intel.tids_of(UID), recheck=True) is GroupOutcome.DONE

    assert (intel.tids("BE"), intel.tids(THROTTLED)) == ({theirs}, {mine})


@pytest.mark.parametrize("tells", [True, False], ids=["kernel tells a thread's groups", "kernel does not"])
def test_threads_that_another_program_watches_stay_watched(intel: Emulated, tells: bool) -> None:
    mine, theirs = intel.load(UID, gb_per_s=1, threads=2)
    intel.mkdir("mon_groups/nri")
    intel.write("mon_groups/nri/tasks", f"{theirs}\n")
    groups = Groups(intel.files if tells else Files(proc=intel.root / "none", resctrl=intel.root))
    groups.add_pod(UID)
    groups.collect_threads(UID, intel.tids_of(UID))
    assert (intel.tids("mon_groups/nri"), intel.tids(FREE)) == ({theirs}, {mine})
    assert groups.are_held_by_others()

    groups.add_throttle()
    groups.throttle_pod(UID, intel.tids_of(UID))
    assert (intel.tids("mon_groups/nri"), intel.tids(THROTTLED)) == ({theirs}, {mine})


def test_a_group_of_another_program_that_ends_meanwhile_is_no_failure(intel: Emulated) -> None:
    (mine,) = intel.load(UID, gb_per_s=1)
    intel.mkdir("mon_groups/nri")
    groups = Groups(Files(proc=intel.root / "none", resctrl=intel.root))
    groups.add_pod(UID)
    intel.machine.switches.errors["read mon_groups/nri/tasks"] = errno.ENODEV
    assert groups.collect_threads(UID, intel.tids_of(UID)) is GroupOutcome.DONE
    assert intel.tids(FREE) == {mine}


def test_a_kernel_that_does_not_tell_is_asked_for_the_roots_threads_once_and_not_per_thread(
    intel: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand threads were a thousand lists of all threads of the node."""
    intel.machine.switches.can_rename = False
    intel.load(UID, gb_per_s=1, threads=100)
    groups = Groups(Files(proc=intel.root / "none", resctrl=intel.root))
    groups.add_pod(UID)
    groups.add_throttle()
    opened: list[str] = []
    really_open = os.open

    def noted(path: str, flags: int, *rest: int, **more: int) -> int:
        if not flags & (os.O_WRONLY | os.O_RDWR):
            opened.append(os.path.relpath(path, intel.root))
        return really_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", noted)
    assert groups.throttle_pod(UID, intel.tids_of(UID)) is GroupOutcome.DONE
    assert opened.count("tasks") == 1
    assert intel.tids(THROTTLED) == intel.tids_of(UID)()


def test_threads_that_ended_are_no_failure(intel: Emulated) -> None:
    intel.load(UID, gb_per_s=1)
    groups = Groups(intel.files)
    groups.add_pod(UID)
    assert groups.collect_threads(UID, lambda: frozenset({999_999, *intel.tids_of(UID)()})) is GroupOutcome.DONE
    assert intel.tids(FREE) == intel.tids_of(UID)()


def test_the_agent_never_moves_itself(intel: Emulated) -> None:
    groups = Groups(intel.files)
    groups.add_pod(UID)
    groups.collect_threads(UID, lambda: frozenset({0, -5}))
    assert intel.tids(FREE) == set()


def test_a_quiet_pod_costs_no_file_access(intel: Emulated) -> None:
    intel.load(UID, gb_per_s=1, threads=50)
    groups = Groups(intel.files)
    groups.add_pod(UID)
    groups.collect_threads(UID, intel.tids_of(UID))
    intel.machine.switches.errors["*"] = 5
    assert groups.collect_threads(UID, intel.tids_of(UID)) is GroupOutcome.DONE


def test_what_another_program_took_out_comes_back_within_thirty_windows(intel: Emulated) -> None:
    (tid,) = intel.load(UID, gb_per_s=1)
    groups = Groups(intel.files)
    groups.add_pod(UID)
    groups.collect_threads(UID, intel.tids_of(UID))
    intel.write("tasks", f"{tid}\n")
    for _ in range(RECHECK_EVERY):
        groups.collect_threads(UID, intel.tids_of(UID))
    assert intel.tids(FREE) == {tid}


def test_looking_anew_brings_back_what_another_program_took_out(intel: Emulated) -> None:
    (tid,) = intel.load(UID, gb_per_s=1)
    groups = Groups(intel.files)
    groups.add_pod(UID)
    groups.collect_threads(UID, intel.tids_of(UID))
    intel.write("tasks", f"{tid}\n")
    assert groups.collect_threads(UID, intel.tids_of(UID), recheck=True) is GroupOutcome.DONE
    assert intel.tids(FREE) == {tid}


def test_a_pod_whose_threads_the_agent_cannot_see_is_no_failure(intel: Emulated) -> None:
    intel.load(UID, gb_per_s=1, threads=2)
    intel.machine.switches.sees_tasks = False
    groups = Groups(intel.files)
    groups.add_pod(UID)
    assert groups.collect_threads(UID, intel.tids_of(UID)) is GroupOutcome.DONE


def test_a_pod_without_group_is_said_so(intel: Emulated) -> None:
    intel.load(UID, gb_per_s=1)
    assert Groups(intel.files).collect_threads(UID, intel.tids_of(UID)) is GroupOutcome.GONE
