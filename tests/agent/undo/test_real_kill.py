"""SIGKILL for a real process that works on real cgroups (v1) and a mounted resctrl; then the next agent starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from coda_agent.cgroups.layout import find_layout
from coda_agent.cgroups.limits import read_limit, write_limit
from coda_agent.cgroups.quota import CpuLimit
from coda_agent.host.files import Files
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import UndoJournal
from coda_agent.resctrl.groups import Groups
from coda_agent.throttling.restore import boot_id, restore_node
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.mounting import mounted
from coda_lab.emulators.resctrl.profiles import PROFILES
from coda_lab.emulators.resctrl.tasks import RealTasks
from tests.agent.cgroups import real
from tests.agent.cgroups.nodes import UID
from tests.agent.places import fresh_directory
from tests.rigs import need

ROOT = f"coda-test-{os.getpid()}-kill"
MAIN = f"kubepods/burstable/pod{UID}/{'ab' * 32}"
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def machine(needs_fuse: None) -> Iterator[tuple[Files, Machine]]:
    """A pod with two processes, limited to 0.8 cores; another program's class with a limit."""
    need(real.has_v1(), "cgroup v1 (root, cpu and cpuacct controllers)")
    hardware = Machine(PROFILES["intel"], RealTasks())
    hardware.switches.limbo_s = 0.0
    mount = fresh_directory()
    with mounted(hardware, mount), real.groups(f"{ROOT}/{MAIN}"), real.running(f"{ROOT}/{MAIN}", 2, real.REST):
        files = real.files_inside(ROOT, fresh_directory(), mount)
        layout = find_layout(files)
        assert layout is not None
        write_limit(files, layout, MAIN, CpuLimit(quota_us=80_000))
        files.resctrl.mkdir("BE")
        files.resctrl.write("BE/schemata", "MB:0=30\n")
        files.resctrl.write("BE/tasks", f"{os.getpid()}\n")
        yield files, hardware


def shown(files: Files) -> Mapping[str, object]:
    """All that the agent may not leave changed."""
    layout = find_layout(files)
    assert layout is not None
    paths = ("kubepods/burstable", MAIN.rpartition("/")[0], MAIN)
    names = ("schemata", "BE/tasks", "BE/schemata")
    return {
        "limits": [read_limit(files, layout, path) for path in paths],
        "groups": [files.resctrl.directories(path) for path in (".", "mon_groups", "BE/mon_groups")],
        "threads": sorted(files.cgroup.read_text(f"cpu/{MAIN}/tasks").split()),
        "resctrl": {name: files.resctrl.read_text(name) for name in names},
    }


def run_victim(files: Files, state: Path, last: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.agent.undo.victim", files.cgroup.path, files.resctrl.path, state, str(last)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_victim_that_lives_changes_limits_and_groups(machine: tuple[Files, Machine]) -> None:
    files, _ = machine
    state, before = fresh_directory(), shown(files)
    done = run_victim(files, state, 0)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:-1] == ["restored ()", *["acted ()"] * 4]
    changed = shown(files)
    assert {key for key in before if changed[key] != before[key]} == {"limits", "groups"}
    assert files.resctrl.read_text("coda-throttle/schemata").strip().startswith("MB:0=40")
    restart(files, state)
    assert shown(files) == before


@pytest.mark.parametrize("last", range(1, 37, 3))
def test_killed_for_real_nothing_is_left_after_the_next_start(machine: tuple[Files, Machine], last: int) -> None:
    files, _ = machine
    state, before = fresh_directory(), shown(files)
    assert run_victim(files, state, last).returncode == -signal.SIGKILL
    restart(files, state)
    assert shown(files) == before


def restart(files: Files, state: Path) -> None:
    journal = UndoJournal(StateDir(state))
    restored = restore_node(
        files=files, layout=find_layout(files), groups=Groups(files), journal=journal, boot=boot_id(files)
    )
    assert restored.failures == ()
    assert journal.entries == ()
    journal.close()
