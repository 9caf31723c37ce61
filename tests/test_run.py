"""`make test`'s runner, with a Makefile of small recipes in the place of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tests.run
from tests.run import PARTS, PREPARED, TIMES, Part, introduction, summary

ROOT = Path(__file__).parents[1]
HANGS = "touch hangs; exec sleep 1000"
HAS_COME = "until [ -e hangs ]; do sleep 0.05; done"
QUICK = {target: f"echo {target} ran" for target in (*PREPARED, *(part.target for part in PARTS))}


def started(folder: Path, recipes: dict[str, str]) -> subprocess.Popen[str]:
    targets = [f"{target}:\n\t@{recipe}\n" for target, recipe in recipes.items()]
    (folder / "Makefile").write_text("\n".join(targets))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.run"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CODA_CACHE_DIR": str(folder), "MAKEFLAGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, recipes: dict[str, str]) -> tuple[int, str]:
    running = started(folder, recipes)
    said, _ = running.communicate(timeout=120)
    return running.returncode, said


def test_a_green_run_says_what_it_runs_and_the_next_one_how_long_it_took(tmp_path: Path) -> None:
    code, said = run(tmp_path, QUICK)
    assert code == 0
    for part in PARTS:
        assert part.title in said[: said.index("ran")]
        assert f"{part.target} ran" in said
    assert "About 33 min 00 s on two idle cores" in said
    assert said.splitlines()[-1].startswith("==> all checks and tests passed in ")
    _, again = run(tmp_path, QUICK)
    took = json.loads((tmp_path / TIMES).read_text())["seconds_by_part"]
    assert took.keys() == {"set-up", "check", "unit", "compiled", "e2e", "chain", "whole"}
    assert "The last green run (" in again[: again.index("ran")]


def test_what_runs_beside_the_others_is_shown_in_one_piece(tmp_path: Path) -> None:
    beside = "for n in 1 2 3 4; do echo chain $$n; sleep 0.1; done"
    code, said = run(
        tmp_path, QUICK | {"chain": beside, "check": "for n in 1 2 3 4; do echo check $$n; sleep 0.1; done"}
    )
    assert code == 0
    assert "chain 1\nchain 2\nchain 3\nchain 4\n" in said
    assert "check 1\ncheck 2\ncheck 3\ncheck 4\n" in said


def test_the_first_part_that_fails_ends_the_one_beside_it_and_keeps_no_times(tmp_path: Path) -> None:
    code, said = run(tmp_path, QUICK | {"chain": HANGS, "unit": f"{HAS_COME}; exit 1"})
    assert code == 1
    assert said.splitlines()[-1] == "==> make unit failed"
    assert "compiled ran" not in said
    assert not (tmp_path / TIMES).exists()


def test_once_nothing_else_runs_the_parts_beside_are_heard_as_they_speak(tmp_path: Path) -> None:
    """Else nobody sees for ten minutes what the control planes do."""
    recipes = {"e2e": "echo begins; until [ -e heard ]; do sleep 0.05; done; echo goes on"}
    running = started(tmp_path, QUICK | recipes)
    assert running.stdout is not None
    while "begins" not in running.stdout.readline():
        pass
    (tmp_path / "heard").touch()
    said, _ = running.communicate(timeout=60)
    assert (running.returncode, said.splitlines()[0]) == (0, "goes on")


@pytest.mark.parametrize(("computes", "waits"), [("unit", "chain"), ("compiled", "e2e")])
def test_a_part_that_waits_runs_beside_one_that_computes(tmp_path: Path, computes: str, waits: str) -> None:
    code, said = run(tmp_path, QUICK | {computes: f"{HAS_COME}; echo computes", waits: "touch hangs"})
    assert (code, "computes" in said) == (0, True)


@pytest.mark.parametrize("first", ["unit", "chain"])
@pytest.mark.parametrize("later", ["compiled", "e2e"])
def test_the_control_planes_have_the_machine_once_all_that_came_first_has_ended(
    tmp_path: Path, first: str, later: str
) -> None:
    recipes = {first: "sleep 0.5; touch ended", later: "test -e ended"}
    assert run(tmp_path, QUICK | recipes)[0] == 0


def test_a_part_that_yields_lets_the_others_go_first(tmp_path: Path) -> None:
    code, said = run(tmp_path, QUICK | {"unit": "echo unit $$(nice)", "compiled": "echo compiled $$(nice)"})
    assert code == 0
    nice = int(subprocess.run(["nice"], capture_output=True, text=True, check=True).stdout)
    assert {f"unit {nice}", f"compiled {min(nice + 10, 19)}"} <= {*said.splitlines()}


def test_a_failure_beside_the_others_is_shown_and_ends_them(tmp_path: Path) -> None:
    code, said = run(tmp_path, QUICK | {"chain": f"{HAS_COME}; echo no machine; exit 1", "check": HANGS})
    assert code == 1
    assert "no machine" in said
    assert said.splitlines()[-1] == "==> make chain failed"


def test_interrupted_it_ends_all_parts(tmp_path: Path) -> None:
    running = started(tmp_path, QUICK | {"chain": HANGS, "check": f"{HAS_COME}; echo begins; exec sleep 1000"})
    assert running.stdout is not None
    while "begins" not in running.stdout.readline():
        pass
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert (running.returncode, said.splitlines()[-1]) == (130, "==> interrupted")


async def test_interrupted_while_a_part_starts_it_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Makefile").write_text(f"part:\n\t@{HANGS}\n")
    monkeypatch.chdir(tmp_path)
    part = asyncio.create_task(tests.run.run(Part(target="part", title="")))
    while not processes_in(tmp_path):
        await asyncio.sleep(0)
    while not (tmp_path / "hangs").exists():  # the event loop stands still: it has not heard of the process yet
        assert processes_in(tmp_path)
    part.cancel()
    with pytest.raises(asyncio.CancelledError):
        await part
    assert not processes_in(tmp_path)


def processes_in(folder: Path) -> list[str]:
    """The commands of the processes whose working directory is `folder`, but for this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name != str(os.getpid()) and (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text())
    return found


def test_times_are_said_in_minutes() -> None:
    assert summary({"check": 31.2, "whole": 1040.0}) == "17 min 20 s (check 31 s)"
    assert introduction((0.0, {"check": 59.9, "whole": 59.9}))[-1].endswith("took 1 min 00 s (check 1 min 00 s).")
