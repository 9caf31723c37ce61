"""The emulated resctrl keeps the kernel's rules about limits: behaviours 8 to 11, by plain system calls."""

import pytest

from coda_lab.emulators.resctrl.profiles import PROFILES
from tests.emulated import Emulated, refusal
from tests.rigs import Emulate


def limits(tree: Emulated) -> str:
    return next(line for line in tree.read("schemata").splitlines() if line.strip().startswith("MB:")).strip()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("MB: 0=50\n", "Missing '=' or non-numeric domain"),
        ("MB:x=50\n", "Missing '=' or non-numeric domain"),
        ("MB:0\n", "Missing '=' or non-numeric domain"),
        ("MB:0=50;;1=20\n", "Missing '=' or non-numeric domain"),
        ("MB:0=x\n", "Invalid MB value x"),
        ("MB:0=0x20\n", "Invalid MB value 0x20"),
        ("MB:0=5\n", "MB value 5 out of range [10,100]"),
        ("MB:0=101\n", "MB value 101 out of range [10,100]"),
        ("MB:0=50;0=60\n", "Duplicate domain 0"),
        ("MB:0=50;1=999\n", "MB value 999 out of range [10,100]"),
        ("MB:0=50;9=50\n", "ok"),
        ("XX:0=50\n", "Unknown or unsupported resource name 'XX'"),
        ("MB:0=50\n\n", "Missing ':'"),
        ("MB:\n", "Missing 'MB' value"),
        ("\n", "Missing ':'"),
        ("MB:0=50\nL3:0=zz\n", "Non-hex character in the mask zz"),
    ],
)
def test_8_a_command_with_one_bad_token_changes_nothing_and_says_why(
    intel: Emulated, command: str, status: str
) -> None:
    assert (refusal(intel.write, "schemata", command), intel.status()) == ("EINVAL", status)
    assert limits(intel) == "MB:0=100;1=100"


def test_8_values_are_rounded_up_and_only_named_domains_change(intel: Emulated) -> None:
    intel.write("schemata", "  MB :1=15;\n")
    assert limits(intel) == "MB:0=100;1=20"
    intel.write("schemata", "L3:0=f\nMB:0= 31 \n")
    assert limits(intel) == "MB:0=40;1=20"


def test_8_with_mba_mbps_what_came_before_the_bad_token_stays(emulate: Emulate) -> None:
    tree = emulate("intel-mib")
    assert refusal(tree.write, "schemata", "MB:0=500;1=x\n") == "EINVAL"
    assert limits(tree) == "MB:0=500;1=4294967295"


def test_9_names_are_aligned_values_padded_by_old_kernels_and_other_lines_are_there(emulate: Emulate) -> None:
    tree = emulate("amd")
    tree.write("schemata", "MB:1=16\n")
    assert tree.read("schemata").splitlines()[1] == "      MB:0=2048;1=16;2=2048;3=2048;8=2048;9=2048;10=2048;11=2048"
    assert tree.read("schemata").splitlines()[0].startswith("    SMBA:0=2048")

    tree.machine.switches.pads_values = True
    assert "MB:0=2048;1=  16;2=2048" in tree.read("schemata")


@pytest.mark.parametrize(
    ("name", "info", "features", "first_line"),
    [
        ("intel", {"L3", "MB", "L3_MON", "last_cmd_status"}, {"tasks", "schemata", "mon_data"}, "    MB:0=100;1=100"),
        ("intel-per-thread", {"L3", "MB", "L3_MON", "last_cmd_status"}, {"schemata"}, "    MB:0=100;1=100"),
        (
            "intel-mib",
            {"L3", "MB", "L3_MON", "last_cmd_status"},
            {"mba_MBps_event"},
            "    MB:0=4294967295;1=4294967295",
        ),
        ("mbm-only", {"L3_MON", "last_cmd_status"}, {"mon_groups"}, None),
        ("mba-only", {"MB", "last_cmd_status"}, {"schemata"}, "    MB:0=100;1=100"),
        ("l3-only", {"L3", "last_cmd_status"}, {"schemata"}, "    L3:0=7ff;1=7ff"),
        ("snc2", {"L3", "MB", "L3_MON", "last_cmd_status"}, {"mon_groups"}, "    MB:0=100;1=100"),
    ],
)
def test_10_each_profile_shows_what_its_hardware_has(
    emulate: Emulate, name: str, info: set[str], features: set[str], first_line: str | None
) -> None:
    tree = emulate(name)
    assert tree.names("info") == info
    assert features <= tree.names()
    assert ("schemata" in tree.names()) is (first_line is not None)
    if first_line is not None:
        assert tree.read("schemata").splitlines()[0] == first_line


def test_10_the_texts_of_info_are_those_of_the_hardware(emulate: Emulate) -> None:
    intel, amd = emulate("intel"), emulate("amd")
    names = ("bandwidth_gran", "min_bandwidth", "delay_linear", "num_closids")
    assert [intel.read(f"info/MB/{name}") for name in names] == ["10\n", "10\n", "1\n", "8\n"]
    assert [amd.read(f"info/MB/{name}") for name in names] == ["1\n", "0\n", "0\n", "16\n"]
    assert intel.read("info/MB/thread_throttle_mode") == "max\n"
    assert "thread_throttle_mode" not in amd.names("info/MB")
    assert intel.read("info/L3_MON/mon_features") == "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"
    assert amd.read("info/L3_MON/mbm_assign_mode") == "[mbm_event]\ndefault\n"
    assert amd.read("info/L3_MON/available_mbm_cntrs").startswith("0=30;1=30;")


def test_10_sub_numa_clustering_shows_its_nodes_inside_the_sum(emulate: Emulate) -> None:
    tree = emulate("snc2")
    tree.load("pod", gb_per_s=4, domain=1)
    tree.advance(1)
    nodes = [int(tree.read(f"mon_data/mon_L3_01/mon_sub_L3_0{node}/mbm_total_bytes")) for node in (2, 3)]
    assert sum(nodes) == tree.total("", 1) == 4_000_000_000


def test_10_a_profile_that_is_not_mounted_leaves_an_empty_directory(emulate: Emulate) -> None:
    assert emulate("not-mounted").names() == set()
    assert not PROFILES["not-mounted"].is_mounted


def test_11_the_status_is_global_cleared_by_each_command_and_kept_without_newline(intel: Emulated) -> None:
    intel.mkdir("g")
    assert refusal(intel.write, "g/schemata", "MB:0=5\n") == "EINVAL"
    before = intel.status()
    assert refusal(intel.write, "schemata", "MB:0=50") == "EINVAL"
    assert intel.status() == before == "MB value 5 out of range [10,100]"
    intel.mkdir("h")
    assert intel.read("info/last_cmd_status") == "ok\n"
