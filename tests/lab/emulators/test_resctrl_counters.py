"""The emulated resctrl counts as the kernel does: behaviours 12 to 14."""

import itertools

import pytest

from coda_lab.emulators.load import Load
from coda_lab.emulators.resctrl.traffic import served_shares
from tests.emulated import GB, Emulated, refusal
from tests.rigs import Emulate


def test_12_counters_start_at_nothing_grow_and_stay_with_the_group_a_thread_has_left(intel: Emulated) -> None:
    (tid,) = intel.load("pod", gb_per_s=2)
    intel.mkdir("mon_groups/a")
    intel.mkdir("mon_groups/b")
    assert intel.total("mon_groups/a") == 0
    intel.write("mon_groups/a/tasks", f"{tid}\n")
    intel.advance(5)
    intel.write("mon_groups/b/tasks", f"{tid}\n")
    intel.advance(1)

    assert (intel.total("mon_groups/a"), intel.total("mon_groups/b")) == (10 * GB, 2 * GB)
    assert intel.total("") == 12 * GB  # the root has its children's
    intel.rmdir("mon_groups/a")
    assert intel.total("") == 2 * GB  # and loses them with a child


def test_12_a_child_without_a_number_is_left_out_of_the_sum(intel: Emulated) -> None:
    (tid,) = intel.load("pod", gb_per_s=2)
    intel.mkdir("mon_groups/a")
    intel.write("mon_groups/a/tasks", f"{tid}\n")
    intel.advance(1)
    for word in ("Unavailable\n", "Error\n"):
        intel.machine.switches.words = {"mon_groups/a/mon_data/*": word}
        assert intel.read("mon_groups/a/mon_data/mon_L3_00/mbm_total_bytes") == word
        assert intel.total("") == 0


def test_12_a_group_is_unavailable_until_it_or_a_child_has_traffic_in_the_domain(emulate: Emulate) -> None:
    tree = emulate("amd-rome")
    (tid,) = tree.load("pod", gb_per_s=2)
    tree.mkdir("g")
    tree.mkdir("g/mon_groups/a")

    def told(domain: int) -> list[str]:
        counter = f"mon_data/mon_L3_{domain:02}/mbm_total_bytes"
        return [tree.read(f"{group}{counter}") for group in ("g/", "g/mon_groups/a/", "")]

    tree.advance(1)
    assert told(0) == ["Unavailable\n", "Unavailable\n", f"{2 * GB}\n"]

    tree.write("g/tasks", f"{tid}\n")
    tree.write("g/mon_groups/a/tasks", f"{tid}\n")
    tree.advance(1)
    assert told(0) == [f"{2 * GB}\n"] * 3
    assert told(1) == ["Unavailable\n", "Unavailable\n", "0\n"]  # the kernel's own threads are in the root
    tree.rmdir("g/mon_groups/a")
    tree.mkdir("g/mon_groups/a")
    assert told(0)[:2] == ["Unavailable\n"] * 2  # what a child counted goes with it


def test_12_hardware_forgets_counts_without_a_word(emulate: Emulate) -> None:
    tree = emulate("amd")
    (tid,) = tree.load("pod", gb_per_s=2)
    tree.mkdir("mon_groups/a")
    tree.write("mon_groups/a/tasks", f"{tid}\n")
    tree.advance(2)
    tree.machine.counters.fall(tree.machine.root.children["a"].rmid, 3 * GB)
    assert tree.total("mon_groups/a") == 1 * GB
    tree.machine.counters.reset()
    assert tree.total("mon_groups/a") == 0


def test_12_assignable_counters_run_out_and_say_so(emulate: Emulate) -> None:
    tree = emulate("amd")
    tree.machine.counters.hold(2)
    tree.mkdir("mon_groups/a")
    tree.mkdir("mon_groups/b")
    path = "mon_groups/b/mon_data/mon_L3_10/mbm_total_bytes"
    assert tree.read(path) == "Unassigned\n"
    assert refusal(tree.write, "mon_groups/b/mbm_L3_assignments", "mbm_total_bytes:*=e\n") == "ENOSPC"

    tree.write("mon_groups/a/mbm_L3_assignments", "mbm_local_bytes:*=_\n")
    tree.write("mon_groups/b/mbm_L3_assignments", "mbm_total_bytes:*=e\n")
    assert tree.read(path) == "0\n"
    assert tree.read("mon_groups/a/mbm_L3_assignments").splitlines()[1].startswith("mbm_local_bytes:0=_;1=_")
    assert refusal(tree.write, "mon_groups/b/mbm_L3_assignments", "mbm_total_bytes:7=e\n") == "EINVAL"


def test_13_a_limit_takes_bandwidth_from_its_own_group_only(intel: Emulated) -> None:
    (heavy,) = intel.load("heavy", gb_per_s=90, cores=10)
    intel.load("light", gb_per_s=5)
    intel.mkdir("g")
    intel.write("g/tasks", f"{heavy}\n")
    intel.advance(1)
    assert intel.machine.rates == pytest.approx({"heavy": 90 * GB, "light": 5 * GB})

    intel.write("g/schemata", "MB:0=30\n")
    intel.advance(1)
    assert intel.machine.rates["light"] == pytest.approx(5 * GB)
    assert intel.machine.rates["heavy"] < 30 * GB


def test_13_remote_traffic_is_not_local_and_devices_are_not_seen(intel: Emulated) -> None:
    intel.machine.loads["pod"] = Load(
        name="pod", domain=0, cores=8, bytes_per_s=4 * GB, remote_share=0.25, dma_bytes_per_s=50 * GB
    )
    intel.advance(1)
    assert intel.total("") == 4 * GB
    assert int(intel.read("mon_data/mon_L3_00/mbm_local_bytes")) == 3 * GB


def test_13_amd_limits_are_eighths_of_a_gigabyte_for_the_whole_group(emulate: Emulate) -> None:
    tree = emulate("amd")
    tids = tree.load("pod", gb_per_s=20, cores=8, domain=1, threads=4)
    tree.mkdir("g")
    for tid in tids:
        tree.write("g/tasks", f"{tid}\n")
    tree.write("g/schemata", "MB:1=16\n")
    tree.advance(1)
    assert tree.total("g", 1) == 2 * GB


def test_13_mba_mbps_is_steered_towards_the_limit_one_granule_a_second(emulate: Emulate) -> None:
    tree = emulate("intel-mib")
    (tid,) = tree.load("pod", gb_per_s=100, cores=10)
    tree.mkdir("g")
    tree.write("g/tasks", f"{tid}\n")
    tree.write("g/schemata", "MB:0=40000\n")
    closid = tree.machine.groups["g"].closid
    percents, rates = [100.0], []
    for _ in range(12):
        tree.advance(1)
        percents.append(tree.machine.hidden_percents[closid, 0])
        rates.append(tree.machine.rates["pod"])
    assert rates[0] == 100 * GB
    assert all(abs(now - before) <= 10 for before, now in itertools.pairwise(percents))
    assert max(rates[-4:]) < 1.1 * 40000 * (1 << 20)

    tree.write("g/schemata", "MB:0=4294967295\n")
    tree.advance(12)
    assert tree.machine.rates["pod"] == 100 * GB


def test_14_a_victim_gets_a_smaller_share_when_its_domain_is_full(intel: Emulated) -> None:
    intel.load("training", gb_per_s=40)
    intel.advance(1)
    assert served_shares(intel.machine)["training"] == 1
    intel.load("aggressor", gb_per_s=280)
    intel.advance(1)
    assert served_shares(intel.machine)["training"] == pytest.approx(0.5)
