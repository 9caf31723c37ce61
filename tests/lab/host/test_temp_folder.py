"""Folders of clusters: gone with the block, and those of a killed owner gone with the next start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coda_lab.host.processes import MARK, python_path
from coda_lab.host.temp_folder import PREFIX, remove_abandoned, temporary_folder

OWNER = """
import subprocess, sys, os
from coda_lab.host.temp_folder import temporary_folder
with temporary_folder() as folder:
    child = subprocess.Popen(["sleep", "600"], env=os.environ | {sys.argv[1]: str(folder)}, start_new_session=True)
    print(folder, child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def owner_in(parent: Path) -> tuple[subprocess.Popen[str], Path, int]:
    running = subprocess.Popen(
        [sys.executable, "-c", OWNER, MARK],
        env=os.environ | {"TMPDIR": str(parent), "PYTHONPATH": python_path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    folder, pid = running.stdout.readline().split()
    return running, Path(folder), int(pid)


def test_a_folder_is_there_for_the_block_only(parent: Path) -> None:
    with temporary_folder() as folder:
        assert (folder.parent, folder.is_dir()) == (parent, True)
    assert not folder.exists()


def test_the_next_start_removes_what_a_killed_owner_left_and_what_still_runs_of_it(parent: Path) -> None:
    running, left, child = owner_in(parent)
    with running:
        _wait_until_carries(child, left)
        running.kill()
        running.wait()
        with temporary_folder() as folder:
            assert list(parent.glob(f"{PREFIX}*")) == [folder]
    assert not _carries(child, left)


def test_a_folder_whose_owner_lives_is_left_alone(parent: Path) -> None:
    running, folder, _ = owner_in(parent)
    with running:
        assert remove_abandoned(parent) == ()
        assert folder.is_dir()
        running.kill()
    assert remove_abandoned(parent) == (folder,)


def test_a_folder_without_a_lock_is_not_judged(parent: Path) -> None:
    (parent / f"{PREFIX}old").mkdir()
    assert remove_abandoned(parent) == ()


def _wait_until_carries(pid: int, folder: Path) -> None:
    """A program just started has no environment yet: the kernel closes its parent's pipe a moment before."""
    ends_s = time.monotonic() + 10
    while not _carries(pid, folder):
        assert time.monotonic() < ends_s
        time.sleep(0.001)


def _carries(pid: int, folder: Path) -> bool:
    try:
        return f"{MARK}={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
