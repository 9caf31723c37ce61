"""Nothing outlives its owner, nothing foreign is ever killed."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.host.file_lock import Locked, is_locked, locked
from coda_lab.host.processes import MARK, Process, ProcessId, kill_marked, marked, python_path, start, start_time_ticks

PARENT = """
import sys
from pathlib import Path
from coda_lab.host.processes import start
folder = Path(sys.argv[1])
child = start(["sleep", "1000"], environ={}, log=folder / "child.log", folder=folder)
print(child.id.pid, flush=True)
sys.stdin.read()
"""


def started(tmp_path: Path, *argv: str, mark: str | None = None) -> Process:
    environ = {"PATH": os.environ["PATH"]} | ({MARK: mark} if mark else {})
    return start(argv, environ=environ, log=tmp_path / "log", folder=tmp_path)


async def test_the_end_is_awaited_and_the_exit_code_kept(tmp_path: Path) -> None:
    process = started(tmp_path, "sh", "-c", "echo said; echo complained >&2; exit 7")
    assert await process.ended() == 7
    assert process.exit_code == 7
    assert not process.id.is_alive()
    assert (tmp_path / "log").read_text() == "said\ncomplained\n"


async def test_a_signal_reaches_the_children_too(tmp_path: Path) -> None:
    process = started(tmp_path, "sh", "-c", "sleep 1000 & echo $!; wait")
    while not (log := (tmp_path / "log").read_text()).endswith("\n"):
        await asyncio.sleep(0.01)
    process.signal(signal.SIGKILL)
    assert await process.ended() == -signal.SIGKILL
    await gone(int(log))


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while start_time_ticks(pid) is not None:
            await asyncio.sleep(0.01)


def test_a_child_dies_with_its_parent_even_by_sigkill(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": python_path()},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert start_time_ticks(child) is not None
        pinned = os.pidfd_open(child)
        parent.kill()
    assert select.select([pinned], [], [], 10)[0] == [pinned]
    os.close(pinned)


async def test_only_what_carries_the_mark_is_killed(tmp_path: Path) -> None:
    ours, other = f"{tmp_path}/a", f"{tmp_path}/ab"
    mine = [started(tmp_path, "sleep", "1000", mark=ours) for _ in range(2)]
    foreign = [started(tmp_path, "sleep", "1000", mark=other), started(tmp_path, "sleep", "1000")]
    try:
        assert set(marked(ours)) == {process.id.pid for process in mine}
        assert kill_marked(ours) == 2
        assert [process.exit_code for process in mine] == [-signal.SIGKILL] * 2
        assert all(process.id.is_alive() for process in foreign)
    finally:
        for process in (*mine, *foreign):
            process.end_at_once()


def test_a_pid_that_was_given_to_a_later_process_is_not_the_same_process() -> None:
    ticks = start_time_ticks(os.getpid())
    assert ticks is not None
    assert ProcessId(pid=os.getpid(), started_ticks=ticks).is_alive()
    assert not ProcessId(pid=os.getpid(), started_ticks=ticks - 1).is_alive()


def test_a_lock_is_held_once_and_freed_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    assert not is_locked(path)
    with locked(path, wait=False):
        assert is_locked(path)
        with pytest.raises(Locked), locked(path, wait=False):
            pass
        path.unlink()
        assert not is_locked(path)
    with locked(path, wait=False):
        assert is_locked(path)
    assert not is_locked(path)
