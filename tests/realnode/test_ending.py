"""The end of a run of tests under which the virtual machine ends; without any machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENDING = """
import asyncio, os, pytest
from tests.realnode.ending import MachineEnded

async def ended():
    raise MachineEnded("it gave no answer", os.EX_TEMPFAIL)

@pytest.mark.asyncio
async def test_waits():
    watching = asyncio.create_task(ended())
    await asyncio.Event().wait()

def test_next():
    raise AssertionError("it must not run")
"""


def test_it_ends_at_once_with_a_code_that_says_to_try_again(tmp_path: Path) -> None:
    (tmp_path / "test_waiting.py").write_text(ENDING)
    argv = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path / "test_waiting.py"))
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert ended.returncode == os.EX_TEMPFAIL, ended.stdout + ended.stderr
    assert "it gave no answer" in ended.stdout
    assert "must not run" not in ended.stdout
