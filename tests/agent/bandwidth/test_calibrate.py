"""The real generator, with its processes in a group of the emulated resctrl, and the meter that counts them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from coda.errors import InvalidInput, Outage
from coda_agent.bandwidth.calibrate import CalibrationPlan, Clock, calibrate, high_rate, peak_from
from coda_agent.bandwidth.idle_check import CpuTimes, buffer_bytes_by_cpu, read_cpu_times, reason_not_idle
from coda_agent.bandwidth.peak import PeakSource
from coda_agent.host.files import Files
from coda_agent.resctrl.groups import Groups
from coda_lab.emulators.load import Load
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.mounting import mounted
from coda_lab.emulators.resctrl.profiles import PROFILES
from coda_lab.emulators.resctrl.tasks import RealTasks
from coda_lab.emulators.resctrl.traffic import advance

GB = 1_000_000_000
PLAN = CalibrationPlan(span_s=5.0, sample_s=1.0)
TWENTY = [float(number) for number in range(1, 21)]
PARENT = """
import subprocess, sys
command = [sys.executable, "-m", "coda_agent.bandwidth.load_generator", "0", "4000000", "60"]
child = subprocess.Popen(command, stdout=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
"""
IDLE = CpuTimes(busy=1000, all=10_000)


def fake_machine(root: Path, *, cpus: int = 2, cache: str = "1024K", available_kib: int = 1 << 22) -> Files:
    """Processors, caches and memory as files; each core has two CPUs in CPU numbers far apart."""
    for cpu in range(cpus):
        at = root / f"sys/devices/system/cpu/cpu{cpu}"
        (at / "topology").mkdir(parents=True)
        (at / "topology/thread_siblings_list").write_text(f"{cpu}\n")
        (at / "cache/index3").mkdir(parents=True)
        (at / "cache/index3/size").write_text(f"{cache}\n")
        (at / "cache/index3/shared_cpu_list").write_text(f"0-{cpus - 1}\n")
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available_kib} kB\n")
    show_cpu_times(root, IDLE)
    return Files(proc=root / "proc", sys=root / "sys", cgroup=root / "cgroup")


def show_cpu_times(root: Path, times: CpuTimes) -> None:
    (root / "proc/stat").write_text(f"cpu  {times.busy} 0 0 {times.all - times.busy} 0 0 0 0 0 0\ncpu0 1\n")


@dataclass
class Rig:
    root: Path
    files: Files
    machine: Machine
    busy_each_s: int = 0

    @property
    def clock(self) -> Clock:
        return Clock(now_s=lambda: self.machine.now_s, wait=self.wait)

    def wait(self, seconds: float) -> None:
        """Time passes for the emulated hardware; the generator's processes are its load."""
        times = read_cpu_times(self.files)
        busy = times.busy + round(self.busy_each_s * seconds)
        show_cpu_times(self.root, CpuTimes(busy=busy, all=times.all + round(200 * seconds)))
        for process in generators():
            assert isinstance(self.machine.tasks, RealTasks)
            self.machine.tasks.loads[process] = "load"
        advance(self.machine, seconds)


@pytest.fixture
def rig(needs_fuse: None, tmp_path: Path) -> Iterator[Rig]:
    machine = Machine(PROFILES["intel"], RealTasks())
    machine.switches.limbo_s = 0.0
    machine.loads["load"] = Load(name="load", domain=0, cores=64, bytes_per_s=200 * GB)
    mount = tmp_path / "resctrl"
    mount.mkdir()
    with mounted(machine, mount):
        files = fake_machine(tmp_path)
        files.resctrl = Files(resctrl=mount).resctrl
        yield Rig(tmp_path, files, machine)


def generators() -> tuple[int, ...]:
    """The running generators of this test."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (path / "status").read_text(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        if b"coda_agent.bandwidth.load_generator" in command and f"PPid:\t{os.getpid()}\n" in status:
            found.append(int(path.name))
    return tuple(found)


def test_the_peak_is_what_the_meter_counts_for_the_load_and_nothing_is_left(rig: Rig) -> None:
    peak = calibrate(rig.files, Groups(rig.files), (0,), PLAN, rig.clock)
    assert peak.source is PeakSource.MEASURED
    assert peak.bytes_per_s == {0: pytest.approx(PROFILES["intel"].peak_bytes_per_s, rel=0.02)}
    assert rig.files.resctrl.directories("mon_groups") == ()
    assert generators() == ()


@contextmanager
def refused(rig: Rig, words: str) -> Iterator[None]:
    with pytest.raises(Outage, match=words):
        yield
    assert rig.files.resctrl.directories("mon_groups") == ()
    assert generators() == ()


def test_a_busy_node_is_not_measured(rig: Rig) -> None:
    rig.busy_each_s = 60
    with refused(rig, r"not measured: the node is busy: 30% of its CPU time"):
        calibrate(rig.files, Groups(rig.files), (0,), PLAN, rig.clock)


def test_a_node_with_training_pods_is_not_measured(rig: Rig) -> None:
    with refused(rig, "pods with GPUs or other devices run on this node: ml/train-0"):
        calibrate(rig.files, Groups(rig.files), (0,), PLAN, rig.clock, gpu_pods=["ml/train-0"])


def test_the_load_ends_when_somebody_needs_the_node(rig: Rig) -> None:
    plan = CalibrationPlan(span_s=50.0, sample_s=1.0)
    clock = Clock(now_s=lambda: rig.machine.now_s, wait=rig.wait, is_over=lambda: rig.machine.now_s >= 10.0)
    with refused(rig, "somebody needs the node now"):
        calibrate(rig.files, Groups(rig.files), (0,), plan, clock)
    assert rig.machine.now_s < 11.0


def test_a_domain_that_the_load_does_not_reach_is_not_told(rig: Rig) -> None:
    with refused(rig, "domain 1 cannot be told"):
        calibrate(rig.files, Groups(rig.files), (0, 1), PLAN, rig.clock)


def test_without_a_monitoring_id_the_node_is_not_measured(rig: Rig) -> None:
    rig.machine.switches.errors["mkdir mon_groups/*"] = 28
    with refused(rig, "no monitoring group is to be had"):
        calibrate(rig.files, Groups(rig.files), (0,), PLAN, rig.clock)


@pytest.mark.parametrize(
    ("after", "gpu_pods", "reason"),
    [
        (CpuTimes(busy=1005, all=10_200), (), None),
        (CpuTimes(busy=1011, all=10_200), (), "the node is busy: 6% of its CPU time"),
        (IDLE, (), "it cannot be told whether the node is idle: its CPU time does not pass"),
        (CpuTimes(busy=1000, all=10_200), ("b", "a"), "pods with GPUs or other devices run on this node: a, b"),
    ],
)
def test_a_node_is_idle_when_next_to_nothing_runs(
    after: CpuTimes, gpu_pods: tuple[str, ...], reason: str | None
) -> None:
    assert reason_not_idle(IDLE, after, gpu_pods) == reason


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"])
def test_cpu_times_that_are_garbage_are_an_outage(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    with pytest.raises(Outage, match="how busy the node is"):
        read_cpu_times(Files(proc=tmp_path))


def test_cores_that_share_a_cache_together_have_four_times_it(tmp_path: Path) -> None:
    assert buffer_bytes_by_cpu(fake_machine(tmp_path, cpus=4), range(4)) == dict.fromkeys(range(4), 1 << 20)


def test_one_of_two_siblings_loads_a_core(tmp_path: Path) -> None:
    files = fake_machine(tmp_path, cpus=4)
    for cpu in range(4):
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").write_text(
            f"{cpu % 2},{cpu % 2 + 2}"
        )
    assert buffer_bytes_by_cpu(files, range(4)) == dict.fromkeys(range(2), 2 << 20)


@pytest.mark.parametrize(
    ("machine", "usable", "words"),
    [
        ({"available_kib": 8191}, (0, 1), "measuring needs 4 MiB, more than half of the 7 MiB that are available"),
        ({}, (0,), "may not run on CPU 1"),
        ({"cache": "lots"}, (0, 1), "caches and memory cannot be read"),
    ],
)
def test_a_node_that_cannot_be_loaded_says_why(
    tmp_path: Path, machine: dict[str, int], usable: tuple[int, ...], words: str
) -> None:
    with pytest.raises(Outage, match=words):
        buffer_bytes_by_cpu(fake_machine(tmp_path, **machine), usable)  # type: ignore[arg-type]  # a word for a size


@pytest.mark.parametrize(
    ("own", "limit", "used", "idle"),
    [
        pytest.param("0::/", "memory.max", "memory.current", "inactive_file", id="v2"),
        pytest.param(
            "9:cpu:/x\n4:memory:/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", id="v1"
        ),
    ],
)
def test_the_agent_s_own_memory_limit_is_kept(tmp_path: Path, own: str, limit: str, used: str, idle: str) -> None:
    """Above it the kernel kills the agent, at every start again. The pod's limit counts like the container's."""
    files = fake_machine(tmp_path)
    container = tmp_path / "cgroup" / ("memory" if "memory:" in own else "") / "kubepods/pod1/agent"
    container.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text(f"{own}kubepods/pod1/agent\n")
    (container / limit).write_text("max\n" if limit == "memory.max" else "9223372036854771712\n")
    for at in (container, container.parent):
        (at / used).write_text(f"{72 << 20}\n")
        (at / "memory.stat").write_text(f"anon {64 << 20}\n{idle} {8 << 20}\n")
    (container.parent / limit).write_text(f"{(80 << 20) - 1}\n")
    with pytest.raises(Outage, match="that takes 16 MiB, and the agent's memory limit leaves 15 MiB"):
        buffer_bytes_by_cpu(files, (0, 1))
    (container.parent / limit).write_text(f"{80 << 20}\n")
    assert sum(buffer_bytes_by_cpu(files, (0, 1)).values()) == 4 << 20


def test_in_a_namespace_of_its_own_the_agents_limit_is_seen_in_its_own_mount(tmp_path: Path) -> None:
    """A container that is not privileged: no path of the host is known there."""
    files = fake_machine(tmp_path)
    own = tmp_path / "proc/self/root/sys/fs/cgroup"
    own.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (own / "memory.current").write_text(f"{64 << 20}\n")
    (own / "memory.stat").write_text("anon 0\ninactive_file 0\n")
    (own / "memory.max").write_text(f"{(80 << 20) - 1}\n")
    with pytest.raises(Outage, match="the agent's memory limit leaves 15 MiB"):
        buffer_bytes_by_cpu(files, (0, 1))
    (own / "memory.max").write_text(f"{80 << 20}\n")
    assert sum(buffer_bytes_by_cpu(files, (0, 1)).values()) == 4 << 20


def test_this_machine_s_own_caches_are_read() -> None:
    needs = buffer_bytes_by_cpu(Files(), range(4096))
    assert all(size > 1 << 20 for size in needs.values())


@pytest.mark.parametrize(("samples", "expected"), [([5.0], 5.0), ([1.0, 9.0], 9.0), (TWENTY, 18.0)])
def test_the_high_percentile_leaves_bursts_out(samples: list[float], expected: float) -> None:
    assert high_rate(samples) == expected


@pytest.mark.parametrize("samples", [[], [1.0] * 4, [0.0] * 20])
def test_too_few_samples_and_no_load_make_no_peak(samples: list[float]) -> None:
    with pytest.raises(Outage, match="domain 3 cannot be told"):
        peak_from({3: samples}, (3,))


@pytest.mark.parametrize("plan", [{"span_s": 4.0}, {"sample_s": 0.0}, {"span_s": float("nan")}])
def test_a_plan_without_samples_is_refused(plan: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="at least 5 samples"):
        CalibrationPlan(**plan)


def test_a_generator_copies_and_says_how_much() -> None:
    cpu = min(os.sched_getaffinity(0))
    arguments = [sys.executable, "-m", "coda_agent.bandwidth.load_generator", str(cpu), str(8 << 20), "0.3"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) >= 4 << 20
    assert done.stderr == ""


def test_a_generator_dies_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        generator = Path(f"/proc/{int(started.stdout.readline())}/status")
        deadline_s = time.monotonic() + 30
        while "Cpus_allowed_list:\t0\n" not in generator.read_text() and time.monotonic() < deadline_s:
            time.sleep(0.01)  # it pins itself right after it has asked to die with its parent
        started.kill()
        while generator.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not generator.exists()
