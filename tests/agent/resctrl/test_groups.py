"""The agent's groups on the emulated kernel, step by step."""

import errno
from dataclasses import replace

import pytest

from coda_agent.resctrl.counters import TrafficMeter
from coda_agent.resctrl.groups import GroupedPods, GroupOutcome, Groups
from coda_lab.emulators.resctrl.profiles import PROFILES, Limiting, Monitoring
from tests.emulated import GB, Emulated, refusal
from tests.rigs import Emulate

UID = "0b5c-11"
FREE, THROTTLED = f"mon_groups/coda-{UID}", f"coda-throttle/mon_groups/coda-{UID}"


@pytest.fixture(params=["renaming kernel", "old kernel"])
def tree(intel: Emulated, request: pytest.FixtureRequest) -> Emulated:
    intel.machine.switches.can_rename = request.param == "renaming kernel"
    return intel


def test_a_pod_is_watched_throttled_and_released(tree: Emulated) -> None:
    tids = set(tree.load(UID, gb_per_s=100, cores=10, threads=3))
    list_tids = tree.tids_of(UID)
    groups = Groups(tree.files)

    assert groups.add_pod(UID) is groups.collect_threads(UID, list_tids) is GroupOutcome.DONE
    assert tree.tids(FREE) == tids
    assert groups.add_throttle() is groups.throttle_pod(UID, list_tids) is GroupOutcome.DONE
    assert (tree.tids("coda-throttle"), tree.tids(THROTTLED)) == (tids, tids)
    assert groups.grouped_pods() == GroupedPods(free=frozenset(), throttled=frozenset({UID}))
    assert groups.set_limit(0, 30) == 30
    tree.advance(1)
    assert tree.machine.rates[UID] < 30 * GB

    assert groups.release_pod(UID, list_tids) is GroupOutcome.DONE
    tree.advance(1)
    assert tree.machine.rates[UID] == 100 * GB
    assert groups.grouped_pods() == GroupedPods(free=frozenset({UID}), throttled=frozenset())
    assert groups.remove_pod(UID) is groups.remove_throttle() is GroupOutcome.DONE
    assert tree.tids("") == tids
    assert not {name for name in tree.names() | tree.names("mon_groups") if name.startswith("coda-")}


def test_every_step_may_be_repeated(tree: Emulated) -> None:
    tids = set(tree.load(UID, gb_per_s=1, threads=2))
    list_tids = tree.tids_of(UID)
    groups = Groups(tree.files)
    steps = [
        lambda: groups.add_pod(UID),
        lambda: groups.collect_threads(UID, list_tids, recheck=True),
        groups.add_throttle,
        lambda: groups.throttle_pod(UID, list_tids),
        lambda: groups.add_pod(UID),
        lambda: groups.release_pod(UID, list_tids),
        lambda: groups.remove_pod(UID),
        groups.remove_throttle,
    ]
    for step in steps:
        assert (step(), step()) == (GroupOutcome.DONE, GroupOutcome.DONE)
    assert tree.tids("") == tids


def test_a_limit_is_what_the_kernel_made_of_it(emulate: Emulate) -> None:
    tree = emulate("intel")
    groups = Groups(tree.files)
    assert groups.limits() == {}
    assert refusal(groups.set_limit, 0, 50) == "ENOENT"
    groups.add_throttle()
    assert groups.limits() == groups.root_limits() == {0: 100, 1: 100}
    assert (groups.set_limit(1, 35), groups.set_limit(0, 100)) == (40, 100)
    assert groups.limits() == {0: 100, 1: 40}
    assert {refusal(groups.set_limit, *pair) for pair in ((0, 5), (0, 101), (7, 50))} == {"EINVAL"}
    assert groups.limits() == {0: 100, 1: 40}
    assert groups.root_limits() == {0: 100, 1: 100}  # the root is never touched


def test_units_of_other_hardware_go_through_as_they_are(emulate: Emulate) -> None:
    amd, mib = Groups(emulate("amd").files), Groups(emulate("intel-mib").files)
    assert amd.add_throttle() is mib.add_throttle() is GroupOutcome.DONE
    assert (amd.set_limit(10, 64), mib.set_limit(1, 40000)) == (64, 40000)
    assert (amd.limits()[10], amd.limits()[11], mib.limits()) == (64, 2048, {0: 4294967295, 1: 40000})


def test_a_limit_that_does_not_show_is_an_error(intel: Emulated) -> None:
    groups = Groups(intel.files)
    groups.add_throttle()
    intel.machine.switches.words["coda-throttle/schemata"] = "    L3:0=7ff\n"
    assert refusal(groups.set_limit, 0, 50) == "EIO"


def test_hardware_ids_that_ran_out_are_an_answer_not_a_failure(emulate: Emulate) -> None:
    tree = emulate(replace(PROFILES["intel"], limiting=Limiting(closids=1), monitoring=Monitoring(rmids=2)))
    groups = Groups(tree.files)
    assert groups.add_throttle() is GroupOutcome.EXHAUSTED
    assert (groups.add_pod("a"), groups.add_pod("b")) == (GroupOutcome.DONE, GroupOutcome.EXHAUSTED)
    groups.remove_pod("a")
    assert groups.add_pod("b") is GroupOutcome.RETRY  # its id is in limbo
    tree.advance(3)
    assert groups.add_pod("b") is GroupOutcome.DONE


def test_without_an_id_to_spare_an_old_kernel_leaves_the_pod_where_it_is(emulate: Emulate) -> None:
    tree = emulate(replace(PROFILES["intel"], monitoring=Monitoring(rmids=3)))
    tree.machine.switches.can_rename = False
    tids = set(tree.load(UID, gb_per_s=1, threads=2))
    groups = Groups(tree.files)
    groups.add_pod(UID)
    groups.collect_threads(UID, tree.tids_of(UID))
    assert groups.add_throttle() is GroupOutcome.DONE
    assert groups.throttle_pod(UID, tree.tids_of(UID)) is GroupOutcome.EXHAUSTED
    assert tree.tids(FREE) == tids


def test_a_pod_is_released_even_when_no_id_is_left_for_its_group(intel: Emulated) -> None:
    tids = set(intel.load(UID, gb_per_s=1, threads=2))
    groups = Groups(intel.files)
    groups.add_throttle()
    groups.add_pod(UID)
    groups.throttle_pod(UID, intel.tids_of(UID))
    intel.machine.rmids.hold(0)
    intel.machine.switches.can_rename = False

    assert groups.release_pod(UID, intel.tids_of(UID)) is GroupOutcome.EXHAUSTED
    assert intel.tids("coda-throttle") == set()
    assert tids <= intel.tids("")
    assert groups.grouped_pods() == GroupedPods(free=frozenset(), throttled=frozenset())


def test_throttling_needs_the_throttle_group(intel: Emulated) -> None:
    groups = Groups(intel.files)
    groups.add_pod(UID)
    assert groups.throttle_pod(UID, frozenset) is GroupOutcome.GONE
    assert groups.grouped_pods().free == {UID}


def test_a_group_that_somebody_removed_is_made_anew(intel: Emulated) -> None:
    tids = set(intel.load(UID, gb_per_s=1, threads=2))
    groups = Groups(intel.files)
    for step in (groups.add_throttle, lambda: groups.add_pod(UID)):
        step()
    groups.collect_threads(UID, intel.tids_of(UID))
    groups.throttle_pod(UID, intel.tids_of(UID))
    intel.rmdir(THROTTLED)  # its threads stay throttled, in the parent

    assert groups.collect_threads(UID, intel.tids_of(UID), recheck=True) is GroupOutcome.GONE
    assert groups.release_pod(UID, intel.tids_of(UID)) is GroupOutcome.DONE
    assert (intel.tids(FREE), intel.tids("coda-throttle")) == (tids, set())


def test_where_counters_are_assigned_a_pod_without_one_counts_in_the_root(emulate: Emulate) -> None:
    tree = emulate("amd")
    tree.machine.counters.hold(4)
    groups = Groups(tree.files)
    outcomes = [groups.add_pod(f"pod-{number}") for number in range(6)]
    assert outcomes == [GroupOutcome.DONE] * 4 + [GroupOutcome.EXHAUSTED] * 2
    assert groups.grouped_pods().free == {f"pod-{number}" for number in range(4)}
    groups.remove_pod("pod-0")
    assert groups.add_pod("pod-5") is GroupOutcome.DONE


@pytest.mark.parametrize(
    ("profile", "add_pod", "add_throttle"),
    [
        ("intel", GroupOutcome.DONE, GroupOutcome.DONE),
        ("intel-per-thread", GroupOutcome.DONE, GroupOutcome.DONE),
        ("intel-mib", GroupOutcome.DONE, GroupOutcome.DONE),
        ("amd", GroupOutcome.DONE, GroupOutcome.DONE),
        ("snc2", GroupOutcome.DONE, GroupOutcome.DONE),
        ("mbm-only", GroupOutcome.DONE, GroupOutcome.UNSUPPORTED),
        ("mba-only", GroupOutcome.UNSUPPORTED, GroupOutcome.DONE),
        ("l3-only", GroupOutcome.UNSUPPORTED, GroupOutcome.DONE),
        ("not-mounted", GroupOutcome.UNSUPPORTED, GroupOutcome.UNSUPPORTED),
    ],
)
def test_each_hardware_does_what_it_can_and_is_left_as_it_was(
    emulate: Emulate, profile: str, add_pod: GroupOutcome, add_throttle: GroupOutcome
) -> None:
    tree = emulate(profile)
    before = tree.names()
    groups = Groups(tree.files)
    assert (groups.add_pod(UID), groups.add_throttle()) == (add_pod, add_throttle)
    groups.remove_all()
    assert tree.names() == before


@pytest.mark.parametrize("uid", ["", "../../BE", "a/b", "a\nb", "x" * 200, "ü"])
def test_a_uid_that_is_none_is_refused_before_anything_is_written(intel: Emulated, uid: str) -> None:
    groups = Groups(intel.files)
    for operation in (groups.add_pod, groups.remove_pod):
        assert refusal(operation, uid) == "EINVAL"
    for move in (groups.throttle_pod, groups.release_pod, groups.collect_threads):
        assert refusal(move, uid, frozenset) in {"EINVAL", "taken"}  # taken: GONE without throttle group
    assert intel.machine.log == []


@pytest.mark.parametrize("operation", ["mkdir *", "write *", "rename *", "rmdir *", "read *"])
def test_an_unexpected_error_is_raised_and_the_next_call_puts_it_right(tree: Emulated, operation: str) -> None:
    tids = set(tree.load(UID, gb_per_s=1, threads=2))
    list_tids = tree.tids_of(UID)
    groups = Groups(tree.files)

    def whole() -> None:
        groups.add_pod(UID)
        groups.collect_threads(UID, list_tids, recheck=True)
        groups.add_throttle()
        groups.throttle_pod(UID, list_tids)
        groups.set_limit(0, 50)
        groups.release_pod(UID, list_tids)
        groups.remove_throttle()

    tree.machine.switches.errors[operation] = errno.EIO
    assert refusal(whole) == "EIO"
    tree.machine.switches.errors.clear()
    whole()
    assert tree.tids(FREE) == tids
    assert "coda-throttle" not in tree.names()


@pytest.mark.parametrize("can_rename", [True, False])
def test_another_programs_lock_puts_off_what_takes_several_steps(intel: Emulated, can_rename: bool) -> None:
    intel.machine.switches.can_rename = can_rename
    groups = Groups(intel.files)
    steps = (groups.add_throttle, lambda: groups.add_pod(UID), lambda: groups.throttle_pod(UID, frozenset))
    for step in steps:
        with intel.files.resctrl.locked():
            before = list(intel.machine.log)
            assert step() is GroupOutcome.RETRY
            assert intel.machine.log == before
        assert step() is GroupOutcome.DONE


@pytest.mark.parametrize("can_rename", [True, False])
def test_a_throttle_is_released_also_while_another_program_has_the_lock(intel: Emulated, can_rename: bool) -> None:
    intel.machine.switches.can_rename = can_rename
    groups = Groups(intel.files)
    groups.add_throttle()
    groups.add_pod(UID)
    groups.throttle_pod(UID, frozenset)
    with intel.files.resctrl.locked():
        assert groups.release_pod(UID, frozenset) is GroupOutcome.DONE
        assert groups.remove_throttle() is GroupOutcome.DONE
    assert groups.grouped_pods().free == {UID}


def test_a_limit_that_another_program_changes_at_once_is_given_as_it_is_in_force(intel: Emulated) -> None:
    groups = Groups(intel.files)
    groups.add_throttle()
    values = intel.machine.groups["coda-throttle"].values["MB"]
    intel.machine.once_before.append(("read coda-throttle/schemata", lambda: values.update({0: 70})))
    assert groups.set_limit(0, 50) == 70


ABMC = PROFILES["amd"]


def counters(tree: Emulated) -> int:
    """How many are free in each domain."""
    (free,) = {part.partition("=")[2] for part in tree.read("info/L3_MON/available_mbm_cntrs").strip().split(";")}
    return int(free)


def test_an_event_that_is_disabled_hides_no_lack_of_counters(emulate: Emulate) -> None:
    """Its refusal was taken for a kernel that assigns nothing, and pods without a counter for measured ones."""
    tree = emulate(replace(ABMC, monitoring=Monitoring(events=("llc_occupancy", "mbm_total_bytes"), counters=3)))
    groups = Groups(tree.files)
    outcomes = [groups.add_pod(f"pod-{number}") for number in range(3)]
    assert outcomes == [GroupOutcome.DONE, GroupOutcome.DONE, GroupOutcome.EXHAUSTED]


def test_the_throttle_group_keeps_no_counter(emulate: Emulate) -> None:
    tree = emulate("amd")
    groups = Groups(tree.files)
    before = counters(tree)
    assert groups.add_throttle() is GroupOutcome.DONE
    assert counters(tree) == before
    meter = TrafficMeter(tree.files, (0,))
    tree.load("others", gb_per_s=5)
    for _ in range(2):
        tree.advance(1)
        traffic = meter.sample(tree.machine.now_s)
    assert traffic.totals == {0: 5 * GB}


@pytest.mark.parametrize("profile", ["intel", "amd", "intel-mib"])
def test_a_new_throttle_group_has_no_more_than_the_root(emulate: Emulate, profile: str) -> None:
    """The kernel gives a new group the whole cache and all bandwidth."""
    tree = emulate(profile)
    tree.files.resctrl.write("schemata", "L3:0=f\n")
    tree.files.resctrl.write("schemata", "MB:0=70;1=50\n")
    groups = Groups(tree.files)
    assert groups.add_throttle() is GroupOutcome.DONE
    assert tree.files.resctrl.read_text("coda-throttle/schemata") == tree.files.resctrl.read_text("schemata")
    groups.set_limit(0, 40)
    assert groups.add_throttle() is GroupOutcome.DONE
    assert groups.limits()[0] == 40  # what is there is not written again


def test_a_throttle_group_that_could_not_be_filled_is_made_again(
    intel: Emulated,
) -> None:
    intel.files.resctrl.write("schemata", "MB:0=70\n")
    groups = Groups(intel.files)
    intel.machine.switches.errors["write coda-throttle/schemata"] = errno.EIO
    assert refusal(groups.add_throttle) == "EIO"
    intel.machine.switches.errors.clear()
    assert groups.add_throttle() is GroupOutcome.DONE
    assert groups.limits()[0] == 70
