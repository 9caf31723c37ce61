"""The emulated resctrl keeps the kernel's rules about groups: behaviours 1 to 4, 15 and 16, by plain system calls."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from coda_lab.emulators.resctrl.profiles import PROFILES, Limiting, Monitoring
from tests.emulated import Emulated, refusal
from tests.rigs import Emulate

CONTROL = {"tasks", "cpus", "cpus_list", "schemata", "size", "mode", "mon_groups", "mon_data"}
MONITOR = {"tasks", "cpus", "cpus_list", "mon_data"}


def test_1_mkdir_makes_groups_where_the_kernel_does_and_nowhere_else(intel: Emulated) -> None:
    intel.mkdir("g")
    intel.mkdir("g/mon_groups/m")

    assert intel.names("g") == CONTROL
    assert intel.names("g/mon_groups/m") == MONITOR
    assert {refusal(intel.mkdir, path) for path in ("info/x", "g/x", "mon_data/x", "mon_groups/mon_groups")} == {
        "EPERM"
    }
    assert {refusal(intel.mkdir, path) for path in ("g", "info", "tasks", "g/mon_groups/m")} == {"EEXIST"}
    assert refusal(intel.mkdir, "two\nlines") == "EINVAL"


def test_2_ids_run_out_apart_from_each_other_and_come_back_after_limbo(emulate: Emulate) -> None:
    profile = replace(PROFILES["intel"], limiting=Limiting(closids=4), monitoring=Monitoring(rmids=6))
    tree = emulate(profile)
    for name in ("a", "b", "c"):
        tree.mkdir(name)
    assert (refusal(tree.mkdir, "d"), tree.status()) == ("ENOSPC", "Out of CLOSIDs")

    tree.mkdir("mon_groups/m")
    tree.mkdir("mon_groups/n")
    assert (refusal(tree.mkdir, "mon_groups/o"), tree.status()) == ("ENOSPC", "Out of RMIDs")

    tree.rmdir("c")
    assert (refusal(tree.mkdir, "d"), tree.status()) == ("EBUSY", "Out of RMIDs")  # and the class is given back
    tree.advance(2)
    assert refusal(tree.mkdir, "d") == "taken"


def test_3_rmdir_takes_a_full_directory_and_hands_its_threads_on(intel: Emulated) -> None:
    first, second = intel.spawn(threads=2)
    intel.mkdir("g")
    intel.mkdir("g/mon_groups/m")
    intel.write("g/tasks", f"{first}\n")
    intel.write("g/tasks", f"{second}\n")
    intel.write("g/mon_groups/m/tasks", f"{second}\n")

    intel.rmdir("g/mon_groups/m")
    assert intel.tids("g") == {first, second}
    intel.mkdir("g/mon_groups/m")
    intel.rmdir("g")
    assert {first, second} <= intel.tids("")
    assert "g" not in intel.names()
    assert {refusal(intel.rmdir, path) for path in ("info", "mon_data", "mon_groups", "info/MB")} == {"EPERM"}
    assert refusal(os.unlink, intel.root / "tasks") == "EPERM"
    assert refusal(os.open, intel.root / "mine", os.O_CREAT | os.O_WRONLY) == "EACCES"


def test_4_a_renamed_monitoring_group_keeps_its_counters_and_changes_its_threads_limits(intel: Emulated) -> None:
    (tid,) = intel.load("pod", gb_per_s=5)
    intel.mkdir("g")
    intel.mkdir("mon_groups/m")
    intel.write("mon_groups/m/tasks", f"{tid}\n")
    intel.advance(3)

    intel.rename("mon_groups/m", "g/mon_groups/n")

    assert intel.total("g/mon_groups/n") == 15_000_000_000
    assert (intel.tids("g"), intel.tids("g/mon_groups/n")) == ({tid}, {tid})
    assert refusal(intel.rename, "g", "h") == "EPERM"
    assert refusal(intel.rename, "g/mon_groups/n", "n") == "EPERM"
    intel.machine.switches.can_rename = False
    assert refusal(intel.rename, "g/mon_groups/n", "mon_groups/n") == "EPERM"


def test_15_it_mounts_once_and_unmounting_resets_everything(intel: Emulated, tmp_path: Path) -> None:
    from coda_lab.emulators.resctrl.mounting import mounted  # needs libfuse

    (tid,) = intel.spawn()
    intel.mkdir("BE")
    intel.write("BE/tasks", f"{tid}\n")
    intel.write("schemata", "MB:0=50\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    with pytest.raises(OSError, match="only once") as caught, mounted(intel.machine, elsewhere):
        pytest.fail("a second mount was taken")
    assert caught.value.errno == errno.EBUSY

    intel.machine.reset()
    assert intel.tids("") == {tid}
    assert intel.read("schemata").splitlines()[0].strip() == "MB:0=100;1=100"
    assert "BE" not in intel.machine.groups


def test_16_a_removed_group_is_gone_for_open_files_and_long_writes_are_refused(intel: Emulated) -> None:
    intel.mkdir("g")
    descriptor = os.open(intel.root / "g/tasks", os.O_RDWR)
    try:
        assert refusal(intel.write, "g/tasks", "1," * 2049) == "E2BIG"
        intel.rmdir("g")
        assert refusal(os.pread, descriptor, 10, 0) in {"ENOENT", "ENODEV"}
        assert refusal(os.write, descriptor, b"1\n") in {"ENOENT", "ENODEV"}
        assert refusal(intel.read, "g/tasks") == "ENOENT"
    finally:
        os.close(descriptor)


def test_16_errors_and_foreign_writes_come_when_a_test_says_so(intel: Emulated) -> None:
    intel.machine.switches.errors["read */mbm_total_bytes"] = errno.EIO
    assert refusal(intel.total) == "EIO"

    foreign = intel.machine.root.values["MB"]
    intel.machine.once_before.append(("read schemata", lambda: foreign.update({0: 70})))
    assert "0=70" in intel.read("schemata")


def test_opening_with_truncation_changes_no_membership(intel: Emulated) -> None:
    (tid,) = intel.spawn()
    intel.mkdir("g")
    intel.write("g/tasks", f"{tid}\n")

    os.close(os.open(intel.root / "g/tasks", os.O_WRONLY | os.O_TRUNC))

    assert intel.tids("g") == {tid}


def test_what_only_shows_something_cannot_be_opened_for_writing(intel: Emulated) -> None:
    assert refusal(os.open, intel.root / "info/MB/min_bandwidth", os.O_WRONLY) == "EACCES"
