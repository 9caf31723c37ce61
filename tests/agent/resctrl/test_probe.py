"""What the agent finds out about every kind of hardware."""

from pathlib import Path

import pytest

from coda_agent.host.files import Files
from coda_agent.resctrl.probe import Abilities, Unit, domain_by_cpu, domain_of, limits_by_domain, probe_abilities
from tests.emulated import Emulated
from tests.rigs import Emulate

INTEL = Abilities(
    monitoring=True,
    limiting=True,
    domains=(0, 1),
    unit=Unit.PERCENT,
    unlimited=100,
    least=10,
    granularity=10,
    closids=8,
    rmids=144,
)


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("intel", INTEL),
        (
            "amd",
            Abilities(
                monitoring=True,
                limiting=True,
                domains=(0, 1, 2, 3, 8, 9, 10, 11),
                unit=Unit.EIGHTHS,
                unlimited=2048,
                closids=16,
                rmids=256,
            ),
        ),
        (
            "mbm-only",
            Abilities(
                monitoring=True,
                domains=(0, 1),
                rmids=144,
                lacks=("the hardware has no bandwidth allocation",),
            ),
        ),
    ],
)
def test_finds_what_the_hardware_can(emulate: Emulate, profile: str, expected: Abilities) -> None:
    assert probe_abilities(emulate(profile).files) == expected


@pytest.mark.parametrize(
    ("profile", "monitoring", "limiting", "unit", "lacks"),
    [
        ("intel-per-thread", True, True, Unit.PERCENT, ()),
        ("intel-mib", True, True, Unit.MIB_PER_S, ()),
        ("snc2", True, True, Unit.PERCENT, ()),
        ("mba-only", False, True, Unit.PERCENT, ("the hardware has no bandwidth monitoring",)),
        (
            "l3-only",
            False,
            False,
            Unit.PERCENT,
            ("the hardware has no bandwidth monitoring", "the hardware has no bandwidth allocation"),
        ),
        (
            "not-mounted",
            False,
            False,
            Unit.PERCENT,
            ("resctrl is not there (No such file or directory): mount it on the host",),
        ),
    ],
)
def test_says_what_is_lacking(
    emulate: Emulate, profile: str, monitoring: bool, limiting: bool, unit: Unit, lacks: tuple[str, ...]
) -> None:
    found = probe_abilities(emulate(profile).files)
    assert (found.monitoring, found.limiting, found.unit, found.lacks) == (monitoring, limiting, unit, lacks)


def test_bandwidth_is_not_limited_beside_a_group_that_owns_cpus(intel: Emulated) -> None:
    """Throttled threads on these CPUs would get the root's cache instead of the group's. Cores are halved then."""
    intel.files.resctrl.mkdir("partition")
    assert probe_abilities(intel.files).limiting
    intel.machine.switches.words["partition/cpus_list"] = "4-7"
    found = probe_abilities(intel.files)
    assert (found.monitoring, found.limiting, found.domains) == (True, False, (0, 1))
    assert found.lacks == ("group partition of another program has CPUs of its own: limits would take pods out of it",)
    intel.files.resctrl.rmdir("partition")
    assert probe_abilities(intel.files) == INTEL


@pytest.mark.parametrize("control", ["", "partition/"])
def test_no_pod_is_followed_beside_a_monitoring_group_that_has_cpus(intel: Emulated, control: str) -> None:
    """As of `pqos`: it would count less without a word."""
    tree, group = intel.files.resctrl, f"{control}mon_groups/pqos-1"
    tree.mkdir("partition")
    tree.mkdir(group)
    tree.mkdir("mon_groups/coda-own")
    intel.machine.switches.words["mon_groups/coda-own/cpus_list"] = "4-7"
    assert probe_abilities(intel.files) == INTEL
    intel.machine.switches.words[f"{group}/cpus_list"] = "4-7"
    found = probe_abilities(intel.files)
    assert (found.monitoring, found.following, found.limiting) == (True, False, True)
    assert found.lacks == (
        f"{group} of another program counts what runs on its CPUs: no pod is taken out of its counts",
    )


def test_says_where_resctrl_is_if_not_where_it_is_looked_for(tmp_path: Path) -> None:
    """It can be mounted once, so "mount it" would be wrong advice. A container sees the host's table as process 1's."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1/mounts").write_text("proc /proc proc rw 0 0\nresctrl /mnt/rdt resctrl rw,relatime 0 0\n")
    (tmp_path / "mounts").write_text("proc /proc proc rw 0 0\n")
    lacks = probe_abilities(Files(proc=tmp_path, resctrl=Path("/nowhere"))).lacks
    assert lacks == ("the host has resctrl at /mnt/rdt, and the agent sees none at /nowhere",)


def test_mib_is_recognised_without_the_mount_options(emulate: Emulate) -> None:
    assert probe_abilities(Files(resctrl=emulate("intel-mib").root)).unit is Unit.MIB_PER_S


def test_mib_is_recognised_when_somebody_limited_the_root(emulate: Emulate) -> None:
    tree = emulate("intel-mib")
    tree.write("schemata", "MB:0=90;1=90\n")
    assert (probe_abilities(tree.files).unit, probe_abilities(tree.files).unlimited) == (Unit.MIB_PER_S, 4294967295)


def test_amd_is_recognised_when_somebody_limited_the_root(emulate: Emulate) -> None:
    tree = emulate("amd")
    tree.write("schemata", "MB:0=16;1=16;2=16;3=16;8=16;9=16;10=16\n")
    assert (probe_abilities(tree.files).unit, probe_abilities(tree.files).unlimited) == (Unit.EIGHTHS, 2048)


def test_ladders_are_in_the_units_of_the_hardware(emulate: Emulate) -> None:
    peaks = {0: 40e9, 1: 160e9}
    assert limits_by_domain(INTEL, peaks) == dict.fromkeys((0, 1), (100, 90, 80, 70, 60, 50, 40, 30, 20))
    amd = limits_by_domain(probe_abilities(emulate("amd").files), peaks)
    assert amd[0] == (2048, 288, 256, 224, 192, 160, 128, 96, 64)
    mib = limits_by_domain(probe_abilities(emulate("intel-mib").files), peaks)
    assert mib[1][:2] == (4294967295, 137329)
    assert limits_by_domain(probe_abilities(emulate("mbm-only").files), peaks) == {}
    lowered = emulate("intel")
    lowered.files.resctrl.write("schemata", "MB:0=70;1=70\n")  # by an administrator
    assert limits_by_domain(probe_abilities(lowered.files), peaks)[0] == (70, 60, 50, 40, 30, 20)


def test_cpus_belong_to_the_domain_of_their_last_level_cache(tmp_path: Path) -> None:
    for cpu, domain in {"cpu0": "0", "cpu1": "8", "cpu10": "8", "cpu2": "garbage", "cpufreq": "1"}.items():
        cache = tmp_path / "devices/system/cpu" / cpu / "cache/index3"
        cache.mkdir(parents=True)
        (cache / "id").write_text(domain + "\n")
    assert domain_by_cpu(Files(sys=tmp_path)) == {0: 0, 1: 8, 10: 8}
    assert domain_by_cpu(Files(sys=tmp_path / "none")) == {}


def test_probing_writes_nothing(intel: Emulated) -> None:
    probe_abilities(intel.files)
    assert intel.machine.log == []


@pytest.mark.parametrize(
    ("directory", "domain"),
    [("mon_L3_00", 0), ("mon_L3_4294967295", 4_294_967_295), ("mon_sub_L3_01", None), ("mon_L3_", None)],
)
def test_a_domain_may_have_any_number_of_32_bits(directory: str, domain: int | None) -> None:
    """On Arm the firmware numbers the caches."""
    assert domain_of(directory) == domain
