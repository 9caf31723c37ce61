"""A test that waits for ever says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WAITS = """
import asyncio

async def arrival(event):
    await event.wait()

async def test_waits():
    beside = asyncio.create_task(arrival(asyncio.Event()), name="beside")
    await arrival(asyncio.Event())
"""


def test_the_report_of_a_timeout_says_what_each_task_awaits(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(WAITS)
    options = ("-p", "tests.awaited", "-o", "asyncio_mode=auto", "-o", "timeout=1", "--rootdir", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "beside awaits" in ran.stdout
    for line in ("test_waits.py:9 in test_waits", "test_waits.py:5 in arrival", "in Event.wait"):
        assert line in ran.stdout, ran.stdout
