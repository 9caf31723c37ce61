"""A study of several runs ends at once when it is told to, with all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

SMALL = Path(__file__).parents[3] / "examples" / "traces" / "small.csv"
TREE = "name,gpus\ndemo,8\n"


def runs_of(pid: int, file: Path) -> list[int]:
    """The children of a process that have opened the file."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError):
            found += [int(child) for link in Path(f"/proc/{child}/fd").iterdir() if link.resolve() == file]
    return found


def lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_sigterm_ends_runs_at_the_same_time(tmp_path: Path) -> None:
    """Runs that would never end: the file of tenants is a pipe, written to once, for the command itself."""
    pipe = tmp_path / "tenants.csv"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "coda_cli", "simulate", "--trace", str(SMALL), "--cluster", "4x8x48"]
    with subprocess.Popen(
        [*command, "--tenants", str(pipe), "--seed", "1", "--seed", "2", "--jobs", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            pipe.write_text(TREE)
            assert process.stderr is not None
            for line in process.stderr:
                if "measured from" in line:  # the pipe was read
                    break
            writer = os.open(pipe, os.O_RDWR)
            until_s = time.monotonic() + 60
            while len(runs := runs_of(process.pid, pipe)) < 2 and time.monotonic() < until_s:
                time.sleep(0.05)
            assert len(runs) == 2
            process.terminate()
            _, told = process.communicate(timeout=20)
            assert process.returncode == 130, told
            assert told.splitlines()[-1] == "coda: interrupted"
            assert [run for run in runs if lives(run)] == []
            os.close(writer)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
