"""The library in users' images, as scripts of other processes use it, on the real file system."""

from __future__ import annotations

import ast
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coda.progress import JobReport, report_from_bytes

JOB = Path(__file__).resolve().parents[2] / "job"


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(JOB), "CODA_JOB_DIR": str(folder), **more}


def run(script: str, folder: Path, **more: str) -> str:
    """What the script prints, warnings included. It must end well."""
    told = subprocess.run(
        [sys.executable, "-c", f"import coda_job\n{script}"],
        env=environment(folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    )
    return told.stdout


def said(folder: Path) -> JobReport:
    report, fault = report_from_bytes((folder / "progress").read_bytes())
    assert fault == ""
    return report


def end_of(script: str, folder: Path) -> str:
    """What a script prints that does not have the library yet, or forks. All of it is killed after 20 s."""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=20)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, told
    return told


@contextmanager
def running(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A script that has printed its first line."""
    command = [sys.executable, "-c", f"import coda_job\n{script}"]
    with subprocess.Popen(command, env=environment(folder), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_what_is_reported_is_in_the_file_and_all_of_it_at_the_end(tmp_path: Path) -> None:
    script = """
coda_job.report(step=1, total_steps=90, epoch=0, loss=0.5)
coda_job.report(epoch=2.5, lr=1e-3)
coda_job.report(step=7)
coda_job.saved()
coda_job.report(step=8)
"""
    assert run(script, tmp_path, PYTHONWARNINGS="error") == ""
    assert said(tmp_path) == JobReport(
        step=8, total_steps=90, epoch=2.5, loss=0.5, loss_epoch=0, learning_rate=0.001, saved_step=7
    )
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


def test_everybody_may_read_the_file_whatever_the_umask(tmp_path: Path) -> None:
    run("import os\nos.umask(0o77)\ncoda_job.report(step=1)", tmp_path)
    assert stat.S_IMODE((tmp_path / "progress").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "environ",
    [{"RANK": "3"}, {"CODA_JOB_DIR": ""}],
    ids=["another rank", "no Coda"],
)
def test_elsewhere_it_does_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    script = "coda_job.report(step=1, loss='x')\ncoda_job.saved()\nprint(coda_job.stopping())"
    assert run(script, tmp_path, **environ) == "False\n"
    assert list(tmp_path.iterdir()) == []


def test_bad_values_are_left_out_and_said_once(tmp_path: Path) -> None:
    script = """
for _ in range(3):
    coda_job.report(step="many", loss=[1, 2], epoch=float("nan"), lr=0.5)
coda_job.saved()
"""
    told = run(script, tmp_path).splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "step is str 'many'",
        "epoch is float nan",
        "loss is list [1, 2]",
        "saved() needs a step, saved(step=...), where none was reported",
    ]
    assert said(tmp_path) == JobReport(learning_rate=0.5)


@pytest.mark.parametrize(
    ("value", "kind"), [("Lost()", "Lost"), ("10**5000", "int")], ids=["a tensor of a lost device", "too many digits"]
)
def test_a_value_that_cannot_even_be_shown_is_left_out(tmp_path: Path, value: str, kind: str) -> None:
    script = f"""
class Lost:
    def __int__(self):
        raise RuntimeError("CUDA error: device-side assert triggered")
    __repr__ = __float__ = __int__

coda_job.report(step={value}, lr=0.5)
"""
    assert run(script, tmp_path) == f"step is {kind}: a number is needed, and it was left out\n"
    assert said(tmp_path) == JobReport(learning_rate=0.5)


def test_a_loss_that_is_no_number_reaches_who_reads(tmp_path: Path) -> None:
    run("coda_job.report(step=3, loss=float('nan'))", tmp_path)
    report, fault = report_from_bytes((tmp_path / "progress").read_bytes())
    assert (report, fault[:13]) == (JobReport(step=3), "loss is 'nan'")


def test_a_directory_that_is_gone_does_not_harm(tmp_path: Path) -> None:
    told = run("coda_job.report(step=1)\ncoda_job.saved()\nprint('trained')", tmp_path / "gone")
    assert told.splitlines()[-1] == "trained"
    assert told.count("cannot be written") == 1


def test_a_link_in_the_place_of_its_own_file_is_not_followed(tmp_path: Path) -> None:
    script = """
import os
os.symlink("/etc/passwd-coda-test", os.path.join(os.environ["CODA_JOB_DIR"], ".progress.%d.1" % os.getpid()))
coda_job.report(step=1)
"""
    assert "cannot be written" in run(script, tmp_path)


def test_a_full_disk_is_not_filled_with_what_could_not_be_written(tmp_path: Path) -> None:
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (3, 3))\n"
    assert "cannot be written" in run(limited + "for step in range(5): coda_job.saved(step)", tmp_path)
    assert len([*tmp_path.iterdir()]) == 1


def test_no_reader_sees_half_a_file_while_writers_are_killed(tmp_path: Path) -> None:
    """Each report has one number in all places, so a mixture would show."""
    script = """
from coda_job.progress_file import ProgressFile
file, step = ProgressFile(clock=iter(range(10**9)).__next__), 0
print("begins", flush=True)
while True:
    step += 1
    file.say({"step": step, "total_steps": step, "loss": step})
"""
    for _ in range(10):
        with running(script, tmp_path) as process:
            seen: set[int | None] = set()
            until_s = time.monotonic() + 30
            while len(seen) < 50 and time.monotonic() < until_s:
                if (tmp_path / "progress").exists():
                    report = said(tmp_path)
                    assert report.step == report.total_steps == report.loss
                    seen.add(report.step)
            process.send_signal(signal.SIGKILL)
        assert len(seen) == 50
        assert said(tmp_path).step


def test_a_shell_script_speaks_it_too(tmp_path: Path) -> None:
    script = """
set -eu
report() { printf '%s\\n' "$@" > "$CODA_JOB_DIR/.progress" && mv "$CODA_JOB_DIR/.progress" "$CODA_JOB_DIR/progress"; }
report step=100 total_steps=400 epoch=0.25 loss=1.5
report step=200 total_steps=400 epoch=0.50 loss=1.25 saved=200
"""
    subprocess.run(["sh", "-c", script], env=environment(tmp_path), check=True)
    assert said(tmp_path) == JobReport(step=200, total_steps=400, epoch=0.5, loss=1.25, saved_step=200)


LOOP = """
import time
coda_job.stopping()
print("trains", flush=True)
while not coda_job.stopping():
    time.sleep(0.01)
coda_job.saved(41)
print("saved", flush=True)
"""


def test_a_script_hears_sigterm_saves_and_ends(tmp_path: Path) -> None:
    with running(LOOP, tmp_path) as process:
        process.terminate()
        told, _ = process.communicate(timeout=30)
        assert (told, process.returncode) == ("saved\n", 0)
    assert said(tmp_path) == JobReport(saved_step=41)


def test_a_script_hears_the_file_stop(tmp_path: Path) -> None:
    with running(LOOP, tmp_path) as process:
        (tmp_path / "stop").touch()
        told, _ = process.communicate(timeout=30)
        assert (told, process.returncode) == ("saved\n", 0)


ANNOUNCED = "id=plan-7\ncause=Migrate\nnotice_s=42\n"


def test_a_save_after_the_announcement_is_its_answer(tmp_path: Path) -> None:
    with running(LOOP.replace("coda_job.saved(41)", "coda_job.saved(coda_job.notice())"), tmp_path) as process:
        (tmp_path / ".part").write_text(ANNOUNCED)
        (tmp_path / ".part").replace(tmp_path / "stop")
        told, _ = process.communicate(timeout=30)
        assert (told, process.returncode) == ("saved\n", 0)
    assert said(tmp_path) == JobReport(saved_step=42, answer="plan-7")


def test_a_save_that_was_under_way_when_it_came_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "stop").write_text(ANNOUNCED)
    run("coda_job.saved(3)", tmp_path)
    assert said(tmp_path) == JobReport(saved_step=3)
    run("coda_job.stopping()\ncoda_job.saved()", tmp_path)  # no step was ever reported
    assert said(tmp_path) == JobReport(answer="plan-7")


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.write_bytes(b"\xff" * 9000)])
def test_a_file_stop_of_another_kind_says_no_more_than_that(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "stop")
    assert run("print(coda_job.stopping(), coda_job.notice())\ncoda_job.saved(3)", tmp_path) == "True None\n"
    assert said(tmp_path) == JobReport(saved_step=3)


def test_a_handler_that_was_there_is_called_too(tmp_path: Path) -> None:
    script = """
import os, signal
signal.signal(signal.SIGTERM, lambda number, frame: print("before"))
coda_job.stopping()
os.kill(os.getpid(), signal.SIGTERM)
print(coda_job.stopping())
"""
    assert run(script, tmp_path) == "before\nTrue\n"


DAEMON = """
fork.Process(target=time.sleep, args=(3600,), daemon=True).start()
print("trained")
"""

POOL = """
with fork.Pool(2) as pool:
    for waited in pool.imap_unordered(wait, [0, 0, 3600, 3600]):
        break
print("trained")
"""


@pytest.mark.parametrize("script", [DAEMON, POOL], ids=["a daemon at the end of the script", "a pool left early"])
def test_a_forked_child_ends_by_sigterm_as_ever(tmp_path: Path, script: str) -> None:
    begin = """
import multiprocessing, time, coda_job
fork = multiprocessing.get_context("fork")
def wait(time_s):
    time.sleep(time_s)
coda_job.stopping()
"""
    assert end_of(begin + script, tmp_path) == "trained\n"


def test_a_child_that_is_ended_while_it_is_forked_ends(tmp_path: Path) -> None:
    script = """
import os, signal, time
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before the library's own
import coda_job
coda_job.stopping()
if not (child := os.fork()):
    time.sleep(3600)
print(os.waitpid(child, 0)[1] == signal.SIGTERM, coda_job.stopping())
"""
    assert end_of(script, tmp_path) == "True False\n"


def test_parent_and_child_hear_sigterm_after_a_fork(tmp_path: Path) -> None:
    """The child once it asks; until then it has the handler that the script had."""
    script = """
import os, signal, coda_job
signal.signal(signal.SIGTERM, lambda number, frame: print("before", flush=True))
coda_job.stopping()
if not (child := os.fork()):
    os.kill(os.getpid(), signal.SIGTERM)
    print(coda_job.stopping(), flush=True)
else:
    os.waitpid(child, 0)
os.kill(os.getpid(), signal.SIGTERM)
print(coda_job.stopping(), signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
"""
    assert end_of(script, tmp_path).splitlines() == ["before", "False", *("before", "True set()") * 2]


def test_where_nothing_forks_it_works(tmp_path: Path) -> None:
    """As on Windows."""
    script = """
import os
del os.register_at_fork
import coda_job
coda_job.report(step=5)
print(coda_job.stopping())
"""
    assert end_of(script, tmp_path) == "False\n"
    assert said(tmp_path) == JobReport(step=5)


@pytest.mark.parametrize("then", ["", "sys.exit(0)"], ids=["goes on", "ends the process"])
@pytest.mark.parametrize("call", ["open", "write", "replace"])
def test_a_handler_that_saves_in_the_middle_of_a_report(tmp_path: Path, call: str, then: str) -> None:
    script = f"""
import os, signal, sys, coda_job

def save(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    coda_job.saved(5)
    {then}

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return usual(*arguments)

signal.signal(signal.SIGTERM, save)
usual, os.{call} = os.{call}, interrupted
coda_job.report(step=7, total_steps=1000, loss=0.25)
"""
    assert end_of(script, tmp_path) == ""
    assert said(tmp_path) == JobReport(step=7, total_steps=1000, loss=0.25, saved_step=5)


def test_a_child_that_was_forked_in_a_report_is_not_stuck(tmp_path: Path) -> None:
    script = """
import os
coda_job._progress._lock.acquire()  # as another thread of the parent would hold it
if not (child := os.fork()):
    coda_job.report(step=5)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert run(script, tmp_path) == "0\n"
    assert said(tmp_path) == JobReport(step=5)


def test_it_is_python_3_8_and_of_the_standard_library_alone() -> None:
    for path in (JOB / "coda_job").glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names | {"coda_job"}


def test_many_threads_may_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import coda_job.progress_file

    monkeypatch.setenv("CODA_JOB_DIR", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    file = coda_job.progress_file.ProgressFile(clock=iter(range(10**9)).__next__)

    def speak() -> None:
        for step in range(100):
            file.say({"step": step})

    threads = [threading.Thread(target=speak) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said(tmp_path) == JobReport(step=99)
