"""Lowering pods' cores, and who owns a limit afterwards."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import ChangeKind, JournalEntry, UndoJournal
from coda_agent.throttling.core_limits import CoreLimits
from coda_agent.throttling.restore import in_force, restore_node
from coda_lab.emulators.cgroups.kubelet import Quality, Setup
from tests.agent.cgroups.nodes import SETUPS, UID, Node, node

BOOT = "boot-1"


def stamped(entry: JournalEntry) -> JournalEntry:
    return replace(entry, at_s=12.0, boot_id=BOOT)


def limits_of(n: Node, state: Path) -> tuple[CoreLimits, UndoJournal]:
    journal = UndoJournal(StateDir(state))
    return CoreLimits(n.files, n.layout, journal, stamped), journal


def text(n: Node, path: str) -> str:
    name = "cpu.max" if n.tree.kernel.version == 2 else "cpu.cfs_quota_us"
    return n.files.cgroup.read_text(n.layout.cpu_file(path, name)).strip()


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("quality", "cores"),
    [(Quality.GUARANTEED, 8.0), (Quality.BURSTABLE, 8.0), (Quality.BEST_EFFORT, None)],
    ids=["guaranteed", "burstable", "best effort"],
)
def test_a_pod_gets_what_it_is_held_to_and_all_of_it_again(
    version: int, setup: Setup, quality: Quality, cores: float | None, state: Path
) -> None:
    n = node(version, setup)
    pod = n.kubelet.start(UID, quality, {"main": cores})
    n.kubelet.demand(UID, "main", 8.0)
    before = {group.path: (group.quota_us, group.period_us) for group in n.tree.kernel.root.walk()}
    core_limits, journal = limits_of(n, state)
    for held in (4.0, 2.0, 3.0):
        assert core_limits.lower(UID, held) == ()
        n.tree.kernel.advance(1.0)
        assert n.tree.kernel.find(pod.path).served_cores == pytest.approx(held)
    assert core_limits.release_pod(UID) == ()
    assert {group.path: (group.quota_us, group.period_us) for group in n.tree.kernel.root.walk()} == before
    assert journal.entries == ()


@pytest.mark.parametrize("version", [1, 2])
def test_deciding_the_same_again_writes_nothing(version: int, state: Path) -> None:
    n = node(version)
    n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, _ = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    written = list(n.tree.log)
    assert (core_limits.lower(UID, 4.0), core_limits.lower_again(UID, 4.0)) == ((), ())
    assert n.tree.log == written


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_is_ever_raised_above_what_it_was(version: int, state: Path) -> None:
    n = node(version)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 2.0})
    core_limits, journal = limits_of(n, state)
    written = list(n.tree.log)
    core_limits.lower(UID, 6.0)
    assert (n.tree.log, journal.entries) == (written, ())
    core_limits.lower(UID, 1.0)
    core_limits.lower(UID, 6.0)
    assert n.limit(pod.containers["main"].path) == 2.0
    assert journal.entries == ()


@pytest.mark.parametrize("version", [1, 2])
def test_a_decision_that_takes_no_cores_is_said_to_fail(version: int, state: Path) -> None:
    """A late reading of 16.5 cores of a pod with 8: the half of it is nothing. Else it would be told as done."""
    n = node(version)
    n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    (sentence,) = core_limits.lower(UID, 8.25)
    assert "cannot be held to 8.25 cores: they are no less than it may use" in sentence
    assert (core_limits.lower_again(UID, 8.25), journal.entries) == ((), ())
    assert core_limits.lower(UID, 4.125) == ()
    assert core_limits.lower(UID, 8.25) == ()  # a step up: this one gives cores back


def test_the_journal_has_the_change_before_the_kernel_does(state: Path) -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    n.tree.switches.errors[f"write {pod.path}/cpu.max"] = errno.EIO
    (sentence,) = core_limits.lower(UID, 4.0)
    assert "cannot be lowered" in sentence
    lines = (state / "journal").read_text().split("\n")[1:]
    assert [word in lines[0] for word in ('"begin"', pod.path, '"value":"400000 100000"')] == [True] * 3
    assert journal.entries == ()  # and closed again, since nothing was changed


def test_a_step_that_fails_leaves_the_step_before_to_be_undone(state: Path) -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    n.tree.switches.errors[f"write {pod.path}/cpu.max"] = errno.EIO
    core_limits.lower(UID, 2.0)
    assert [(entry.original, entry.value) for entry in journal.entries] == [("800000 100000", "400000 100000")]
    n.tree.switches.errors.clear()
    assert core_limits.lower_again(UID, 2.0) == ()
    assert n.limit(pod.path) == 2.0


def test_a_v1_container_with_stricter_children_is_refused_and_said(state: Path) -> None:
    n = node(1)
    main = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0}).containers["main"]
    n.tree.mkdir(f"cpu,cpuacct/{main.path}/inside")
    n.tree.write(f"cpu,cpuacct/{main.path}/inside/cpu.cfs_quota_us", "600000")
    core_limits, journal = limits_of(n, state)
    (sentence,) = core_limits.lower(UID, 4.0)
    assert "cannot be lowered" in sentence
    assert main.path in sentence
    assert (n.limit(main.path), journal.entries) == (8.0, ())


@pytest.mark.parametrize("version", [1, 2])
def test_what_somebody_else_sets_is_left_until_a_new_decision(version: int, state: Path) -> None:
    n = node(version)
    n.kubelet.start(UID, Quality.GUARANTEED, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    n.kubelet.resize(UID, "main", 6.0)
    held = n.kubelet.pods[UID].path if version == 2 else n.kubelet.pods[UID].containers["main"].path
    (sentence,) = core_limits.lower_again(UID, 4.0)
    assert "by another program and is left so" in sentence
    assert core_limits.lower_again(UID, 4.0) == ()
    assert (n.limit(held), journal.entries) == (6.0, ())
    core_limits.lower(UID, 3.0)
    assert n.limit(held) == 3.0
    core_limits.release_pod(UID)
    assert n.limit(held) == 6.0


def test_a_new_decision_right_after_somebody_else_s_value_takes_theirs_as_the_original(state: Path) -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.GUARANTEED, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    n.kubelet.resize(UID, "main", 6.0)
    core_limits.lower(UID, 3.0)
    assert (n.limit(pod.path), [entry.original for entry in journal.entries]) == (3.0, ["600000 100000"])


@pytest.mark.parametrize("version", [1, 2])
def test_a_value_that_came_back_by_itself_is_lowered_again(version: int, state: Path) -> None:
    n = node(version)
    pod = n.kubelet.start(UID, Quality.GUARANTEED, {"main": 8.0})
    core_limits, _ = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    path = pod.path if version == 2 else pod.containers["main"].path
    stem = "" if version == 2 else "cpu,cpuacct/"
    n.tree.write(f"{stem}{path}/{'cpu.max' if version == 2 else 'cpu.cfs_quota_us'}", "800000")
    assert core_limits.lower_again(UID, 4.0) == ()
    assert n.limit(path) == 4.0


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_starts_anew_is_held_too_and_given_its_own_limit(version: int, state: Path) -> None:
    n = node(version)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    main = n.kubelet.restart(UID, "main")
    n.kubelet.demand(UID, "main", 8.0)
    assert core_limits.lower_again(UID, 4.0) == ()
    n.tree.kernel.advance(1.0)
    assert n.tree.kernel.find(pod.path).served_cores == pytest.approx(4.0)
    core_limits.release_pod(UID)
    assert (n.limit(main.path), n.limit(pod.path), journal.entries) == (8.0, 8.0, ())


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_that_ended_leaves_nothing_to_undo(version: int, state: Path) -> None:
    n = node(version)
    n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    n.kubelet.stop(UID)
    assert core_limits.lower_again(UID, 4.0) == ()
    assert journal.entries == ()


def test_garbage_in_a_limit_is_no_reason_to_write(state: Path) -> None:
    n = node(2)
    n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    n.tree.switches.texts["*/cpu.max"] = "lots of it\n"
    written = list(n.tree.log)
    (sentence,) = core_limits.lower(UID, 4.0)
    assert "cannot be held to 4 cores" in sentence
    assert (n.tree.log, journal.entries) == (written, ())


def test_a_container_under_the_same_id_but_started_anew_keeps_its_limit(state: Path) -> None:
    n = node(1)
    main = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0}).containers["main"]
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    n.tree.tasks.exit(main.process)
    n.kubelet.execute(UID, "main")
    restored = restore_node(files=n.files, layout=n.layout, groups=None, journal=journal, boot=BOOT)
    assert [entry.target for entry in restored.dropped] == [main.path]
    assert text(n, main.path) == "400000"


@pytest.mark.parametrize(
    ("disturb", "dropped"),
    [
        pytest.param("nothing", False, id="ours: put back"),
        pytest.param("foreign", True, id="somebody else's: theirs stays"),
        pytest.param("original", True, id="already back"),
        pytest.param("gone", True, id="the pod ended"),
        pytest.param("reboot", True, id="another boot"),
        pytest.param("rounded", False, id="ours as systemd rounds it: put back"),
    ],
)
def test_restoring_compares_before_it_writes(disturb: str, dropped: bool, state: Path) -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0055)
    values = {"foreign": "777000 100000", "original": "800000 100000", "rounded": "401000 100000"}
    if disturb in values:
        n.tree.write(f"{pod.path}/cpu.max", values[disturb])
    if disturb == "gone":
        n.kubelet.stop(UID)
    layout = n.layout if disturb != "gone" else node(2).layout
    boot = "boot-2" if disturb == "reboot" else BOOT
    restored = restore_node(files=n.files, layout=layout, groups=None, journal=journal, boot=boot)
    assert (len(restored.put_back), len(restored.dropped), restored.failures) == (not dropped, dropped, ())
    assert journal.entries == ()
    if disturb not in ("gone", "reboot"):
        assert text(n, pod.path) == ("777000 100000" if disturb == "foreign" else "800000 100000")


def test_v1_gets_a_pod_back_before_its_container(state: Path) -> None:
    n = node(1)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    _, journal = limits_of(n, state)
    for path in (pod.containers["main"].path, pod.path):
        journal.begin(
            JournalEntry(
                kind=ChangeKind.CPU_LIMIT,
                target=path,
                original="800000 100000",
                replaced="800000 100000",
                value="400000 100000",
                at_s=0.0,
                boot_id=BOOT,
                pod_uid=UID,
            )
        )
        n.tree.write(f"cpu,cpuacct/{path}/cpu.cfs_quota_us", "400000")
    assert restore_node(files=n.files, layout=n.layout, groups=None, journal=journal, boot=BOOT).failures == ()
    assert (n.limit(pod.path), n.limit(pod.containers["main"].path)) == (8.0, 8.0)


def test_what_cannot_be_put_back_now_is_kept_and_put_back_later(state: Path) -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    n.tree.switches.errors["write *"] = errno.EIO
    first = restore_node(files=n.files, layout=n.layout, groups=None, journal=journal, boot=BOOT)
    assert (len(first.failures), len(journal.entries)) == (1, 1)
    n.tree.switches.errors.clear()
    assert restore_node(files=n.files, layout=n.layout, groups=None, journal=journal, boot=BOOT).failures == ()
    assert n.limit(pod.path) == 8.0


def test_what_is_in_force_can_be_told_to_whoever_must_undo_it(state: Path) -> None:
    n = node(2)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    core_limits.lower(UID, 4.0)
    (told,) = in_force(journal.entries)
    assert (told.pod_uid, told.what, told.original, told.value, told.since_s) == (
        UID,
        f"CPU limit of {pod.path}",
        "800000 100000",
        "400000 100000",
        12.0,
    )
    assert {entry.kind for entry in journal.entries} == {ChangeKind.CPU_LIMIT}


def bursts_of(n: Node) -> dict[str, tuple[int | None, int]]:
    """Quota and burst of every cgroup."""
    return {group.path: (group.quota_us, group.burst_us) for group in n.tree.kernel.root.walk()}


@pytest.mark.parametrize("how", ["released", "killed"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_burst_above_the_new_quota_goes_first_and_comes_back(version: int, how: str, state: Path) -> None:
    """koordlet's cpuburst sets one. The kernel refused the quota, and the throttle stood in the journal alone."""
    n = node(version)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    n.kubelet.demand(UID, "main", 8.0)
    file = "cpu.max.burst" if version == 2 else "cpu.cfs_burst_us"
    for path in (pod.path, pod.containers["main"].path):
        n.files.cgroup.write(n.layout.cpu_file(path, file), "400000\n")
    before = bursts_of(n)
    core_limits, journal = limits_of(n, state)
    for held in (4.0, 2.0, 1.0):
        assert core_limits.lower(UID, held) == ()
        assert min(n.limit(pod.path), n.limit(pod.containers["main"].path)) == held
    if how == "released":
        assert core_limits.release_pod(UID) == ()
    else:
        journal.close()
        journal = UndoJournal(StateDir(state))
        restored = restore_node(files=n.files, layout=n.layout, groups=None, journal=journal, boot=BOOT)
        assert restored.failures == ()
    assert bursts_of(n) == before
    assert journal.entries == ()


@pytest.mark.parametrize(("version", "name"), [(1, "cpu.cfs_quota_us"), (2, "cpu.max")])
def test_a_kernel_without_cpu_limits_is_told_of(version: int, name: str, state: Path) -> None:
    n = node(version)
    pod = n.kubelet.start(UID, Quality.BURSTABLE, {"main": 8.0})
    core_limits, journal = limits_of(n, state)
    n.tree.switches.errors[f"read *{name}"] = errno.ENOENT
    (problem,) = core_limits.lower(UID, 4.0)
    assert problem == f"pod {UID} cannot be held to 4 cores: {pod.path} has no CPU limit: the kernel offers none"
    assert core_limits.lower_again(UID, 4.0) == (problem,)
    assert journal.entries == ()
    n.kubelet.stop(UID)
    assert core_limits.lower(UID, 4.0) == ()
