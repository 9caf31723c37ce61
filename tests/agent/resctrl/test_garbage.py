"""Garbage in every file that the driver reads: no crash, and no write outside its own groups."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda_agent.host.files import Files
from coda_agent.resctrl.counters import TrafficMeter, number_in
from coda_agent.resctrl.groups import Groups
from coda_agent.resctrl.probe import domain_by_cpu, limits_by_domain, probe_abilities
from coda_agent.resctrl.schemata import bandwidth_limits, limit_command
from tests.emulated import Emulated

garbage = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="MBL3:;=0123456789 \n-+xSA", max_size=60),
    st.sampled_from(["", "\n", "MB:0=100;1=100\n", "Unavailable\n", "Error\n", "99999999999999999999999999\n", "-1\n"]),
    st.text(alphabet="0123456789", min_size=1, max_size=25),
)

READ = (
    "schemata",
    "tasks",
    "info/MB/min_bandwidth",
    "info/MB/bandwidth_gran",
    "info/MB/delay_linear",
    "info/MB/num_closids",
    "info/L3_MON/num_rmids",
    "info/L3_MON/mon_features",
    "info/L3_MON/mbm_assign_mode",
    "mon_data/mon_L3_00/mbm_total_bytes",
    "mon_data/mon_L3_01/mbm_total_bytes",
    "mon_groups/coda-a/mon_data/mon_L3_00/mbm_total_bytes",
    "coda-throttle/schemata",
    "coda-throttle/mon_groups/coda-b/mon_data/mon_L3_01/mbm_total_bytes",
    ".proc/mounts",
)


@given(garbage)
def test_limits_in_any_text_are_numbers_by_domain_and_their_command_reads_back(text: str) -> None:
    limits = bandwidth_limits(text)
    for domain, value in limits.items():
        assert domain >= 0 <= value
        assert bandwidth_limits(limit_command(domain, value)) == {domain: value}


@given(st.dictionaries(st.integers(0, 300), st.integers(0, 4294967295), min_size=1), st.booleans(), st.integers(0, 9))
def test_any_line_of_limits_is_read_whatever_its_padding_and_neighbours(
    limits: dict[int, int], padded: bool, blanks: int
) -> None:
    line = ";".join(f"{domain}={value:>10}" if padded else f"{domain}={value}" for domain, value in limits.items())
    text = f"{'':>{blanks}}L3:0=7ff\n{'':>{blanks}}MB:{line}\nSMBA:0=1\nMBX:0=3\n"
    assert bandwidth_limits(text) == limits


@given(garbage)
def test_a_count_is_the_text_itself_or_nothing(text: str) -> None:
    number = number_in(text.strip())
    assert number is None or int(text) == number


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.dictionaries(st.sampled_from(READ), garbage, max_size=6),
    later=st.dictionaries(st.sampled_from(READ), garbage),
)
def test_reading_garbage_never_fails_and_never_writes(words: Mapping[str, str], later: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path in READ:
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(words.get(path, "7\n").encode())
        files = Files(proc=root / ".proc", sys=root, resctrl=root)
        abilities = probe_abilities(files)
        ladders = limits_by_domain(abilities, {0: 1e11, 1: 1e11})
        assert all(list(ladder) == sorted(set(ladder), reverse=True) for ladder in ladders.values())
        assert domain_by_cpu(files) == {}
        meter = TrafficMeter(files, (0, 1))
        meter.sample(0)
        for path, text in later.items():
            (root / path).write_bytes(text.encode())
        traffic = meter.sample(1)
        rates = [rate for pod in traffic.by_pod.values() for rate in pod.values()] + list(traffic.totals.values())
        assert all(rate is None or 0 <= rate < 1e13 for rate in rates)
        groups = Groups(files)
        assert groups.grouped_pods().free == {"a"}
        assert set(groups.root_limits()) == set(bandwidth_limits((root / "schemata").read_bytes().decode()))
        assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} == set(READ)
        now = {path: (root / path).read_bytes().decode() for path in READ}
        assert now == {path: later.get(path, words.get(path, "7\n")) for path in READ}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups_of=garbage, tasks=garbage, schemata=garbage)
def test_garbage_about_threads_and_limits_makes_no_wrong_write(
    intel: Emulated, groups_of: str, tasks: str, schemata: str
) -> None:
    intel.machine.reset()
    (bystander,) = intel.spawn("bystander")
    intel.machine.add(None, "BE")
    intel.machine.write_tasks(intel.machine.groups["BE"], f"{bystander}\n", 1)
    intel.spawn("pod")
    intel.machine.log.clear()
    intel.machine.switches.words = {
        ".proc/*/cpu_resctrl_groups": groups_of,
        "tasks": tasks,
        "coda-throttle/tasks": tasks,
        "*schemata": schemata,
    }
    groups = Groups(intel.files)
    for step in (
        lambda: groups.add_pod("pod"),
        groups.add_throttle,
        lambda: groups.collect_threads("pod", intel.tids_of("pod")),
        lambda: groups.throttle_pod("pod", intel.tids_of("pod")),
        lambda: groups.set_limit(0, 50),
        lambda: groups.release_pod("pod", intel.tids_of("pod")),
        groups.remove_all,
    ):
        try:
            step()
        except OSError:
            continue  # the text of schemata was garbage: the limit does not show
    assert intel.tids("BE") == {bystander}
    assert intel.machine.root.values["MB"] == {0: 100, 1: 100}
    assert set(intel.machine.groups) == {"BE"}
    own = {str(tid) for tid in intel.tids_of("pod")()}
    moved = {line.split()[-1] for line in intel.machine.log if line.startswith("tasks")}
    assert moved <= own
