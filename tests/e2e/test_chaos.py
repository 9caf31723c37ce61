"""A short run of chaos with a fixed seed, as a user starts it: it passes, says so, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from coda_lab.experiments.chaos.schedule import schedule
from coda_lab.host.processes import MARK, python_path

pytestmark = pytest.mark.e2e

SEED, KILLS, STOPS, CUTS = 1, 4, 1, 1
BUDGET_S = 60  # beside other tests a fail-over takes longer; `make chaos` asks for the 15 s of the design
ACCIDENTS = "policies-removed,lease-deleted"  # short ones


def chaos(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    environ = os.environ | {"PYTHONPATH": python_path(), "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "-m", "coda_lab.experiments.chaos", *words, "--nodes", "12", "--seed", str(SEED)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_in(tmp_path: Path) -> list[str]:
    """Clusters' folders, and processes that belong to one of them."""
    mark = f"{MARK}={tmp_path}".encode()
    found = [path.name for path in tmp_path.glob("coda-local-*")]
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def read_until(stream: IO[str], words: str, *, within_s: float) -> str:
    ends_s, said = time.monotonic() + within_s, ""
    for line in stream:
        said += line
        if words in line:
            return said
        assert time.monotonic() < ends_s, said
    raise AssertionError(f"ended before it said {words!r}:\n{said}")


def test_every_job_is_accounted_for_after_kills_a_stop_a_cut_and_accidents(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    words = ("--kills", str(KILLS), "--stops", str(STOPS), "--cuts", str(CUTS), "--accidents", "2", "--only", ACCIDENTS)
    running = chaos(
        tmp_path, "--lending", "--sharing", "--tenants", *words, "--budget", str(BUDGET_S), "--out", str(out)
    )
    said, _ = running.communicate(timeout=400)
    assert running.returncode == 0, said
    report = json.loads(out.read_text())
    assert (report["passed"], report["problems"], report["breaches"]) == (True, [], [])
    wanted = [(each.target.value, each.kind.value) for each in schedule(SEED, kills=KILLS, stops=STOPS, cuts=CUTS)]
    assert [(each["target"], each["kind"]) for each in report["faults"]] == wanted
    assert sorted(each["accident"] for each in report["accidents"]) == ["lease deleted", "policies removed"]
    lent, jobs = report["lending"], report["jobs"]
    assert lent["running"] == lent["cpu_jobs"] >= 108  # of a Job and, with three quarters, of a Deployment
    assert lent["quota_edits"] > 0
    assert report["history"]["jobs"] >= jobs["succeeded"] + jobs["failed"]
    assert report["shared_gpus"]["agents_killed"] > 0
    assert jobs["succeeded"] > 0
    assert jobs["submitted"] == jobs["succeeded"] + jobs["failed"] + jobs["deleted_by_the_test"]
    assert left_in(tmp_path) == []


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    running = chaos(tmp_path, "--kills", "50")
    assert running.stdout is not None
    read_until(running.stdout, "#1 ", within_s=120)
    assert left_in(tmp_path) != []
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 130, said
    assert "interrupted; nothing is left behind" in said
    assert "Traceback" not in said
    assert left_in(tmp_path) == []
