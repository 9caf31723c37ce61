"""The emulated resctrl keeps the kernel's rules about threads: behaviours 5 to 7, by plain system calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.profiles import PROFILES
from coda_lab.emulators.resctrl.tasks import FakeTasks, RealTasks
from tests.emulated import Emulated, refusal
from tests.rigs import Emulate


def fake(tree: Emulated) -> FakeTasks:
    assert isinstance(tree.machine.tasks, FakeTasks)
    return tree.machine.tasks


def test_5_a_thread_is_in_one_control_group_and_at_most_one_monitoring_group(intel: Emulated) -> None:
    (tid,) = intel.spawn()
    for name in ("g", "h", "g/mon_groups/m", "g/mon_groups/n"):
        intel.mkdir(name)

    assert refusal(intel.write, "g/mon_groups/m/tasks", f"{tid}\n") == "EINVAL"
    assert intel.status().startswith("Can't move task to different control group")
    intel.write("g/tasks", f"{tid}\n")
    intel.write("g/mon_groups/m/tasks", f"{tid}\n")
    intel.write("g/mon_groups/n/tasks", f"{tid}\n")
    assert (intel.tids("g"), intel.tids("g/mon_groups/m"), intel.tids("g/mon_groups/n")) == ({tid}, set(), {tid})
    assert intel.read(f".proc/{tid}/cpu_resctrl_groups") == "res:g\nmon:n\n"

    intel.write("g/tasks", f"{tid}\n")
    assert intel.tids("g/mon_groups/n") == set()
    intel.write("h/tasks", f"{tid}\n")
    assert (intel.tids("g"), intel.tids("h")) == (set(), {tid})


def test_6_ids_are_threads_clones_inherit_and_newcomers_start_in_the_root(intel: Emulated) -> None:
    main, other = intel.spawn("pod", threads=2)
    intel.mkdir("g")
    intel.write("g/tasks", f"{main}\n")
    (clone,) = fake(intel).clone(main)
    (newcomer,) = intel.spawn("pod")

    assert intel.tids("g") == {main, clone}
    assert {other, newcomer} <= intel.tids("")
    fake(intel).exit(clone)
    assert intel.tids("g") == {main}
    assert (refusal(intel.write, "g/tasks", f"{clone}\n"), intel.status().splitlines()[0]) == (
        "ESRCH",
        f"No task {clone}",
    )


def test_6_zero_is_the_writer_itself_and_other_namespaces_see_nothing(intel: Emulated) -> None:
    intel.mkdir("g")
    intel.write("g/tasks", "0\n")
    assert intel.tids("g") == {os.getpid()}

    intel.machine.switches.sees_tasks = False
    assert intel.tids("g") == set()
    assert refusal(intel.write, "g/tasks", f"{os.getpid()}\n") == "ESRCH"


def test_7_a_write_is_a_list_with_any_base_that_stops_at_the_first_failure(intel: Emulated) -> None:
    tids = intel.spawn(threads=4)
    intel.mkdir("g")
    intel.write("g/tasks", f"{tids[0]:#x}\n")
    intel.write("g/tasks", f"0{tids[1]:o}\n")
    assert intel.tids("g") == set(tids[:2])

    assert refusal(intel.write, "g/tasks", f"{tids[2]},999999,{tids[3]}\n") == "ESRCH"
    assert intel.tids("g") == set(tids[:3])
    assert {refusal(intel.write, "g/tasks", text) for text in (f"{tids[3]}\n1\n", "-1\n", "x\n", "09\n")} == {"EINVAL"}
    intel.machine.switches.takes_lists = False
    assert refusal(intel.write, "g/tasks", f"{tids[0]},{tids[1]}\n") == "EINVAL"
    assert refusal(intel.write, "g/tasks", f"{tids[3]}\n") == "taken"


def test_where_nothing_can_be_controlled_the_root_lists_no_threads(emulate: Emulate) -> None:
    tree = emulate("mbm-only")
    (tid,) = tree.spawn()
    tree.mkdir("mon_groups/m")
    tree.write("mon_groups/m/tasks", f"{tid}\n")

    assert (tree.tids(""), tree.tids("mon_groups/m")) == (set(), {tid})
    assert refusal(tree.mkdir, "g") == "EPERM"


@pytest.mark.parametrize("groups", ["g", "g/mon_groups/m"])
def test_real_threads_inherit_from_their_process_and_vanish_with_it(groups: str) -> None:
    machine = Machine(PROFILES["intel"], RealTasks())
    machine.add(None, "g")
    machine.add(machine.groups["g"], "m")
    group = machine.groups["g"] if groups == "g" else machine.groups["g"].children["m"]
    with subprocess.Popen(
        [sys.executable, "-c", "import threading; threading.Thread(target=input).start(); print('go', flush=True)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        machine.write_tasks(machine.groups["g"], f"{child.pid}\n", os.getpid())
        machine.write_tasks(group, f"{child.pid}\n", os.getpid())
        assert child.stdout is not None
        child.stdout.readline()
        threads = {int(path.name) for path in Path(f"/proc/{child.pid}/task").iterdir()}
        assert len(threads) == 2
        assert threads == set(machine.members(group))
        child.communicate(b"\n")
    assert machine.members(group) == ()
