"""Bandwidth from the emulated counters."""

import errno

import pytest

from coda_agent.host.files import Files
from coda_agent.resctrl.counters import LASTING_WINDOWS, SELDOM_COUNTED, TrafficMeter, number_in
from coda_agent.resctrl.groups import GroupOutcome, Groups
from tests.emulated import GB, Emulated
from tests.rigs import Emulate

UID = "pod-1"


def watched(tree: Emulated, uid: str = UID, gb_per_s: float = 5, domain: int = 0) -> Groups:
    """A pod with traffic and a group."""
    tree.load(uid, gb_per_s=gb_per_s, domain=domain, threads=2)
    groups = Groups(tree.files)
    assert groups.add_pod(uid) is GroupOutcome.DONE
    groups.collect_threads(uid, tree.tids_of(uid))
    return groups


def passed(tree: Emulated, meter: TrafficMeter, seconds: float = 1):  # type: ignore[no-untyped-def]
    tree.advance(seconds)
    return meter.sample(tree.machine.now_s)


@pytest.mark.parametrize(
    ("profile", "domains"),
    [("intel", (0, 1)), ("snc2", (0, 1)), ("mbm-only", (0, 1)), ("amd", (0, 1, 2, 3, 8, 9, 10, 11))],
)
def test_rates_are_per_pod_and_domain_and_the_total_has_everybody(
    emulate: Emulate, profile: str, domains: tuple[int, ...]
) -> None:
    tree = emulate(profile)
    meter = TrafficMeter(tree.files, domains)
    watched(tree, "a", 5, 0)
    watched(tree, "b", 7, 1)
    tree.load("unwatched", gb_per_s=2, domain=1)

    assert meter.sample(0).totals == dict.fromkeys(domains)
    traffic = passed(tree, meter, 2)

    rest = dict.fromkeys(domains[2:], 0.0)
    assert traffic.by_pod == {"a": {0: 5 * GB, 1: 0, **rest}, "b": {0: 0, 1: 7 * GB, **rest}}
    assert traffic.totals == {0: 5 * GB, 1: 9 * GB, **rest}
    assert traffic.uncounted == frozenset()


def test_the_total_adds_control_groups_and_never_their_children_again(intel: Emulated) -> None:
    groups = watched(intel)
    (theirs,) = intel.load("theirs", gb_per_s=3)
    intel.mkdir("BE")
    intel.write("BE/tasks", f"{theirs}\n")
    groups.add_throttle()
    meter = TrafficMeter(intel.files, (0, 1))
    passed(intel, meter)
    assert passed(intel, meter).totals == {0: 8 * GB, 1: 0}


def test_being_renamed_costs_no_sample(intel: Emulated) -> None:
    groups = watched(intel)
    groups.add_throttle()
    meter = TrafficMeter(intel.files, (0, 1))
    passed(intel, meter)
    groups.throttle_pod(UID, intel.tids_of(UID))
    traffic = passed(intel, meter)
    assert (traffic.by_pod[UID][0], traffic.totals[0]) == (5 * GB, 5 * GB)


def test_being_carried_over_by_an_old_kernel_costs_one_sample(intel: Emulated) -> None:
    intel.machine.switches.can_rename = False
    groups = watched(intel)
    groups.add_throttle()
    meter = TrafficMeter(intel.files, (0, 1))
    passed(intel, meter)
    groups.throttle_pod(UID, intel.tids_of(UID))
    intel.load("others", gb_per_s=50)  # so much that the sum alone would hide the loss
    traffic = passed(intel, meter, 0.5)
    assert (traffic.by_pod[UID][0], traffic.totals[0]) == (None, None)
    traffic = passed(intel, meter)
    assert (traffic.by_pod[UID][0], traffic.totals[0]) == (5 * GB, 55 * GB)


@pytest.mark.parametrize("word", ["Unavailable\n", "Error\n", "Unassigned\n", "", "12 34\n", "-5\n", "1e9\n", "9" * 30])
def test_a_word_is_no_sample_and_neither_is_the_sum_it_is_missing_from(intel: Emulated, word: str) -> None:
    watched(intel)
    meter = TrafficMeter(intel.files, (0, 1))
    passed(intel, meter)
    intel.machine.switches.words = {f"mon_groups/coda-{UID}/mon_data/mon_L3_00/*": word}
    traffic = passed(intel, meter)
    assert traffic.by_pod[UID] == {0: None, 1: 0}
    assert traffic.totals == {0: None, 1: 0}

    intel.machine.switches.words.clear()
    traffic = passed(intel, meter)
    assert (traffic.by_pod[UID][0], traffic.totals[0]) == (None, None)  # nothing to compare with
    traffic = passed(intel, meter)
    assert (traffic.by_pod[UID][0], traffic.totals[0]) == (5 * GB, 5 * GB)


def test_a_pod_that_the_hardware_does_not_count_costs_a_sample_only_when_that_changes(emulate: Emulate) -> None:
    """As one that sleeps on AMD. The whole socket was blind for as long as it slept."""
    tree = emulate("amd")
    watched(tree, "busy", 15)
    watched(tree, "idle", 0)
    meter = TrafficMeter(tree.files, (0, 1))
    passed(tree, meter)
    tree.machine.switches.words = {"mon_groups/coda-idle/mon_data/mon_L3_00/*": "Unavailable\n"}
    assert passed(tree, meter).totals == {0: None, 1: 0}
    for _ in range(3):
        traffic = passed(tree, meter)
        assert traffic.totals == {0: 15 * GB, 1: 0}
        assert traffic.by_pod == {"busy": {0: 15 * GB, 1: 0}, "idle": {1: 0}}  # and never a 0 that nobody measured
    tree.machine.switches.words.clear()
    assert passed(tree, meter).totals[0] is None
    assert passed(tree, meter).totals[0] == 15 * GB


@pytest.mark.parametrize("control", ["coda-throttle", "BE"])
def test_a_control_group_that_never_ran_in_a_domain_costs_a_sample_only_when_that_changes(
    emulate: Emulate, control: str
) -> None:
    """The domain was blind for as long as the throttle stood, or another program's class was there."""
    tree = emulate("amd-rome")
    tree.load("job", gb_per_s=15, domain=1)
    hog, later = tree.load("hog", gb_per_s=5)[0], tree.load("later", gb_per_s=7, domain=1)[0]
    tree.mkdir(control)
    tree.write(f"{control}/tasks", f"{hog}\n")
    meter = TrafficMeter(tree.files, (0, 1))
    passed(tree, meter)
    assert tree.read(f"{control}/mon_data/mon_L3_01/mbm_total_bytes") == "Unavailable\n"
    for _ in range(3):
        assert passed(tree, meter).totals == {0: 5 * GB, 1: 22 * GB}
    tree.write(f"{control}/tasks", f"{later}\n")
    assert passed(tree, meter).totals == {0: 5 * GB, 1: None}
    assert passed(tree, meter).totals == {0: 5 * GB, 1: 22 * GB}


def test_a_domain_without_any_number_has_no_total(intel: Emulated) -> None:
    """A group that is not counted counts for nothing, but nothing counted is not 0."""
    intel.mkdir("BE")
    intel.machine.switches.words = {"mon_data/*": "Unavailable\n", "BE/mon_data/*": "Unavailable\n"}
    meter = TrafficMeter(intel.files, (0,))
    for _ in range(3):
        assert passed(intel, meter).totals == {0: None}


def test_a_control_group_that_leaves_out_what_its_child_counts_makes_the_total_unknown(intel: Emulated) -> None:
    """As on kernels before 5.15: what the child has counted would be taken off the others' traffic."""
    groups = watched(intel)
    groups.add_throttle()
    groups.throttle_pod(UID, intel.tids_of(UID))
    intel.load("others", gb_per_s=90)
    intel.machine.switches.words = {"coda-throttle/mon_data/*": "Unavailable\n"}
    meter = TrafficMeter(intel.files, (0,))
    for _ in range(3):
        assert passed(intel, meter).totals == {0: None}


def test_a_pod_whose_counter_says_anything_else_makes_the_total_unknown_for_as_long_as_it_does(intel: Emulated) -> None:
    watched(intel)
    meter = TrafficMeter(intel.files, (0,))
    passed(intel, meter)
    for word in ("Error\n", "Unassigned\n", "", "Unavailable\n"):
        intel.machine.switches.words = {f"mon_groups/coda-{UID}/mon_data/*": word}
        passed(intel, meter)
        traffic = passed(intel, meter)
        assert (traffic.totals[0] is None) is (word != "Unavailable\n")


def test_pods_that_are_seldom_counted_are_told_of_after_a_while(emulate: Emulate) -> None:
    tree = emulate("amd")
    watched(tree, "idle", 0)
    meter = TrafficMeter(tree.files, (0,))
    tree.machine.switches.words = {"mon_groups/coda-idle/mon_data/*": "Unavailable\n"}
    told = []
    for window in range(200):
        passed(tree, meter)
        told.append(meter.lacks == (SELDOM_COUNTED,))
        if window == 99:
            tree.machine.switches.words.clear()
    assert (told.index(True), told[100:].index(False)) == (LASTING_WINDOWS, LASTING_WINDOWS - 1)
    assert not any(told[200:])


def test_a_total_that_has_lacked_for_a_minute_is_told_of_with_the_group_that_has_no_number(intel: Emulated) -> None:
    """Nothing was throttled on such a node, without a word."""
    watched(intel)
    intel.mkdir("BE")
    meter = TrafficMeter(intel.files, (0, 1))
    passed(intel, meter)
    intel.machine.switches.words = {"BE/mon_data/mon_L3_01/*": "Error\n"}
    told = []
    for window in range(2 * LASTING_WINDOWS):
        passed(intel, meter, 0.1)
        told.append(meter.lacks)
        if window == LASTING_WINDOWS:
            intel.machine.switches.words.clear()
    (sentence,) = set(told) - {()}
    assert sentence == ("the bandwidth of domain 1 is not measured: the counter of group BE has no number",)
    assert told.index(sentence) == LASTING_WINDOWS - 1
    for _ in range(LASTING_WINDOWS):
        passed(intel, meter, 0.1)
    assert meter.lacks == ()


def test_an_error_of_one_foreign_group_is_no_sample_of_the_total_only(intel: Emulated) -> None:
    watched(intel)
    intel.mkdir("BE")
    meter = TrafficMeter(intel.files, (0, 1))
    passed(intel, meter)
    intel.machine.switches.errors["read BE/*mbm_total_bytes"] = errno.EIO
    traffic = passed(intel, meter)
    assert (traffic.by_pod[UID][0], traffic.totals) == (5 * GB, {0: None, 1: None})


def test_a_child_of_others_that_comes_back_is_not_taken_for_traffic(intel: Emulated) -> None:
    meter = TrafficMeter(intel.files, (0, 1))
    (theirs,) = intel.load("theirs", gb_per_s=100)
    intel.mkdir("mon_groups/nri")
    intel.write("mon_groups/nri/tasks", f"{theirs}\n")
    passed(intel, meter, 100)
    intel.machine.switches.words = {"mon_groups/nri/mon_data/*": "Unavailable\n"}
    assert passed(intel, meter).totals[0] is None
    intel.machine.switches.words.clear()
    assert passed(intel, meter).totals[0] is None  # 10 TB/s


@pytest.mark.parametrize("fall_gb", [1, 1000])
def test_a_counter_that_fell_is_no_sample(intel: Emulated, fall_gb: int) -> None:
    watched(intel)
    meter = TrafficMeter(intel.files, (0, 1))
    passed(intel, meter, 10)
    intel.machine.counters.fall(intel.machine.root.children[f"coda-{UID}"].rmid, 51 * GB if fall_gb > 1 else 20 * GB)
    intel.load("others", gb_per_s=90)  # hides the fall in the sum
    traffic = passed(intel, meter)
    assert (traffic.by_pod[UID][0], traffic.totals[0]) == (None, None)
    assert passed(intel, meter).totals[0] == 95 * GB


def test_a_silent_reset_is_no_sample(emulate: Emulate) -> None:
    tree = emulate("amd")
    watched(tree)
    meter = TrafficMeter(tree.files, (0,))
    passed(tree, meter, 10)
    tree.machine.counters.reset()
    assert passed(tree, meter).by_pod[UID][0] is None
    assert passed(tree, meter).by_pod[UID][0] == 5 * GB


def test_the_total_stays_known_while_pods_come_and_go(intel: Emulated) -> None:
    """On a node where a pod ends every second there would be no total at all, and so no contention."""
    intel.load("others", gb_per_s=50)
    meter = TrafficMeter(intel.files, (0,))
    groups = watched(intel, "pod-0")
    passed(intel, meter, 3)
    for number in range(1, 6):
        groups.remove_pod(f"pod-{number - 1}")
        watched(intel, f"pod-{number}")
        traffic = passed(intel, meter)
        assert traffic.totals == {0: (50 + 5 * (number + 1)) * GB}
        assert traffic.by_pod == {f"pod-{number}": {0: None}}


def test_the_total_survives_the_end_of_other_programs_groups(intel: Emulated) -> None:
    (one,), (other,) = intel.load("one", gb_per_s=3), intel.load("other", gb_per_s=4)
    intel.mkdir("BE")
    intel.write("BE/tasks", f"{one}\n")
    intel.mkdir("mon_groups/nri")
    intel.write("mon_groups/nri/tasks", f"{other}\n")
    meter = TrafficMeter(intel.files, (0,))
    passed(intel, meter, 10)
    assert passed(intel, meter).totals == {0: 7 * GB}
    intel.rmdir("BE")
    intel.rmdir("mon_groups/nri")
    assert passed(intel, meter).totals == {0: 7 * GB}


def test_the_throttle_groups_end_costs_no_sample(intel: Emulated) -> None:
    groups = watched(intel)
    groups.add_throttle()
    groups.throttle_pod(UID, intel.tids_of(UID))
    meter = TrafficMeter(intel.files, (0,))
    passed(intel, meter, 10)
    groups.release_pod(UID, intel.tids_of(UID))
    groups.remove_throttle()
    assert passed(intel, meter).totals == {0: 5 * GB}


def test_a_pod_without_counter_is_named_until_it_has_one(emulate: Emulate) -> None:
    tree = emulate("amd")
    groups = watched(tree)
    meter = TrafficMeter(tree.files, (0, 1))
    passed(tree, meter)
    tree.write(f"mon_groups/coda-{UID}/mbm_L3_assignments", "mbm_total_bytes:*=_\n")
    traffic = passed(tree, meter)
    assert (traffic.uncounted, traffic.totals[0]) == ({UID}, None)
    assert groups.add_pod(UID) is GroupOutcome.DONE
    passed(tree, meter)
    traffic = passed(tree, meter)
    assert (traffic.uncounted, traffic.by_pod[UID][0]) == (frozenset(), 5 * GB)


@pytest.mark.parametrize("later_s", [0.0, -5.0])
def test_a_clock_that_stands_or_goes_back_gives_no_sample(intel: Emulated, later_s: float) -> None:
    watched(intel)
    meter = TrafficMeter(intel.files, (0,))
    meter.sample(100)
    intel.advance(1)
    assert meter.sample(100 + later_s).by_pod[UID] == {0: None}


def test_files_that_are_no_groups_are_passed_over(intel: Emulated, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("captured")
    for group in ("", "BE", "mon_groups/coda-x"):
        counter = root / group / "mon_data/mon_L3_00/mbm_total_bytes"
        counter.parent.mkdir(parents=True)
        counter.write_text("5\n")
    (root / "a_file_of_newer_kernels").touch()
    meter = TrafficMeter(Files(resctrl=root), (0,))
    meter.sample(0)
    assert meter.sample(1).totals == {0: 0}


@pytest.mark.parametrize("profile", ["mba-only", "l3-only", "not-mounted"])
def test_without_monitoring_there_is_nothing_and_no_failure(emulate: Emulate, profile: str) -> None:
    meter = TrafficMeter(emulate(profile).files, (0,))
    assert (meter.sample(1).by_pod, meter.sample(2).totals) == ({}, {0: None})


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("123456789012", 123456789012), ("٣", None), ("0x1", None)])
def test_only_decimal_digits_are_a_count(text: str, number: int | None) -> None:
    assert number_in(text) == number
