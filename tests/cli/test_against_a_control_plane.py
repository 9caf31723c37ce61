"""`coda demo` and `coda replay` as a user calls them, on a local control plane of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def coda(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coda_cli", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=800
    )


def test_the_demo_shows_all_it_tells_of() -> None:
    done = coda("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "A day of a generated month",
        "CPU jobs borrow what training leaves idle",
        "A gang takes the cores back",
        "Why: InsufficientResources: needs 2 ranks of 8 GPUs",
        "cores, without a restart",
        "Throttled: memory bandwidth on socket 0 limited to",
        "no breach",
        "5 acts in",
    ):
        assert told in done.stdout, done.stdout


def test_examples_end_as_expected_and_the_demo_says_who_waited_and_what_never_fits() -> None:
    done = coda("demo", "--examples", "examples", "--speed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "too-large can never fit: NeverFits: a rank needs 16 GPUs" in done.stdout
    assert "gpt-64 waited: Insufficient" in done.stdout
    assert "flaky waited: BackingOff" in done.stdout
    assert "Succeeded, attempt 2" in done.stdout
    assert "Invariants: no breach" in done.stdout


def test_a_replay_finishes_every_job_and_every_wait_has_a_reason(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = coda(
        *("replay", "examples/traces/small.csv", "--local", "--nodes", "4x8x48"),
        *("--speed", "600", "--max-duration", "1h", "--out", str(out)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_bytes())
    assert result["outcomes"] == {"finished": 90, "failed": 0, "refused": 0, "rejected": 0, "unfinished": 0}
    waited = {one["longer_than"]: one for one in result["waited"]}
    assert waited["3min"]["jobs"] >= 5
    assert all(one["jobs"] == one["said_why"] for one in result["waited"])
    assert result["check"]["breaches"] == []
    assert result["check"]["counts"]["jobs"] == 70


def test_jobs_that_may_fail_do_fail_once_and_are_finished_all_the_same(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = coda(
        *("replay", "examples/traces/small.csv", "--local", "--nodes", "4x8x48", "--with-failures"),
        *("--speed", "2000", "--max-duration", "1h", "--limit", "30", "--out", str(out)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_bytes())
    assert result["outcomes"]["finished"] == 30
    assert all(job["attempts"] == 1 for job in result["jobs"])
