"""The emulator as a process: control socket, unmounting, and what a killed one leaves."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coda_lab.emulators.resctrl.control import Remote
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.profiles import PROFILES

pytestmark = pytest.mark.usefixtures("needs_fuse")


@contextmanager
def emulator(root: Path, control: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "coda_lab.emulators.resctrl", "--mount", str(root), "--control", str(control)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.terminate()


Start = Callable[..., tuple[subprocess.Popen[str], Path, Remote]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    from coda_lab.emulators.resctrl.mounting import detach_stale  # needs libfuse

    root, control = tmp_path / "resctrl", tmp_path / "control"
    root.mkdir()
    with ExitStack() as stack:
        stack.callback(detach_stale)

        def begin(*options: str) -> tuple[subprocess.Popen[str], Path, Remote]:
            process = stack.enter_context(emulator(root, control, *options))
            remote = Remote(control)
            stack.callback(remote.close)
            return process, root, remote

        yield begin


def is_mounted(root: Path) -> bool:
    return str(root) in Path("/proc/self/mounts").read_text()


def test_a_test_tells_it_what_happens_and_reads_what_the_kernel_would_say(start: Start) -> None:
    _, root, remote = start("--profile", "amd")
    remote.call("load", name="pod", domain=8, cores=4, bytes_per_s=5e9)
    (tid,) = remote.call("spawn", load="pod")
    (root / "mon_groups/m").mkdir()
    (root / "mon_groups/m/tasks").write_text(f"{tid}\n")

    assert remote.call("advance", seconds=3) == 3
    assert (root / "mon_groups/m/mon_data/mon_L3_08/mbm_total_bytes").read_text() == "15000000000\n"
    assert (remote.call("rates"), remote.call("shares")) == ({"pod": 5e9}, {"pod": 1.0})
    assert remote.call("log") == ["mkdir m", f"tasks mon_groups/m {tid}"]


def test_it_is_told_to_fail(start: Start) -> None:
    _, root, remote = start()
    remote.call("switch", errors={"read schemata": 5})
    with pytest.raises(OSError, match="Input/output error"):
        (root / "schemata").read_text()
    remote.call("switch", errors={}, words={"mon_data/*": "Error\n"})
    assert (root / "mon_data/mon_L3_00/mbm_total_bytes").read_text() == "Error\n"
    remote.call("hold", closids=0, rmids=1)
    with pytest.raises(OSError, match="No space left"):
        (root / "g").mkdir()


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [("fly", {}), ("_fake", {}), ("advance", {}), ("claim", {"process": 1, "load": "x"}), ("switch", {"wings": 1})],
)
def test_a_request_that_makes_no_sense_is_answered_with_a_reason(
    start: Start, verb: str, arguments: dict[str, object]
) -> None:
    _, _, remote = start()
    with pytest.raises(ValueError, match=r"\w+Error: ."):
        remote.call(verb, **arguments)
    assert remote.call("advance", seconds=1) == 1


def test_real_processes_are_threads_too(start: Start) -> None:
    _, root, remote = start("--tasks", "real")
    (root / "g").mkdir()
    descriptor = os.open(root / "g/tasks", os.O_WRONLY)
    os.write(descriptor, b"0\n")
    os.close(descriptor)
    remote.call("claim", process=os.getpid(), load="me")
    assert str(os.getpid()) in (root / "g/tasks").read_text().split()
    assert os.getpid() in remote.call("tids", load="me")


def test_told_to_end_it_unmounts(start: Start) -> None:
    process, root, _ = start()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not is_mounted(root)


def test_it_ends_even_where_another_mount_namespace_keeps_the_mount(start: Start) -> None:
    process, root, _ = start()
    keep = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo kept; read _"]
    with subprocess.Popen(keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "kept\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not is_mounted(root)
        keeper.communicate("\n")


def test_a_killed_one_is_cleared_away_by_the_next(start: Start, tmp_path: Path) -> None:
    process, root, _ = start()
    process.kill()
    process.wait()
    assert is_mounted(root)
    with pytest.raises(OSError, match="not connected"):
        list(root.iterdir())

    start()
    assert "schemata" in {path.name for path in root.iterdir()}
    assert Path("/proc/self/mounts").read_text().count(str(root)) == 1


def test_a_killed_one_elsewhere_is_cleared_away_too(start: Start, tmp_path: Path) -> None:
    from coda_lab.emulators.resctrl.mounting import mounted

    process, root, _ = start()
    process.kill()
    process.wait()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with mounted(Machine(PROFILES["intel"]), elsewhere):
        assert not is_mounted(root)


def test_a_second_one_at_the_same_place_says_why_not(start: Start, tmp_path: Path) -> None:
    _, root, _ = start()
    command = [
        sys.executable,
        "-m",
        "coda_lab.emulators.resctrl",
        "--mount",
        str(root),
        "--control",
        str(tmp_path / "c"),
    ]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert "something is mounted there" in second.stderr
    assert "schemata" in {path.name for path in root.iterdir()}


def test_live_time_passes_by_itself_until_told_to_stop() -> None:
    from coda_lab.emulators.resctrl.__main__ import pass_time

    answers = iter((False, False, False, True))
    machine = Machine(PROFILES["intel"])
    pass_time(machine, lambda _: next(answers), live=True)
    assert 0 < machine.now_s < 60


def test_mounting_leaves_the_programs_signals_alone(tmp_path: Path) -> None:
    from coda_lab.emulators.resctrl.mounting import mounted

    def handled() -> list[tuple[str, bool]]:
        lines = Path("/proc/self/status").read_text().splitlines()
        masks = {line[:6]: int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn", "SigCgt"))}
        numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
        return [(name, bool(mask >> number - 1 & 1)) for name, mask in masks.items() for number in numbers]

    before = handled()
    with mounted(Machine(PROFILES["intel"]), tmp_path):
        assert handled() == before
    assert handled() == before
