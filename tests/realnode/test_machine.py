"""The virtual machine by itself: commands in it, its file systems, and its end with whoever started it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.host.processes import MARK, marked, python_path
from coda_lab.realnode.artifacts import ensure_machine
from coda_lab.realnode.stuck import CONSOLE, LOG
from coda_lab.realnode.vm import Machine, run_in_vm, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.usefixtures("needs_vm")]

_START = "from coda_lab.realnode.vm import run_in_vm; run_in_vm('echo up > /coda/up; exec sleep 600', timeout_s=900{})"


def test_a_command_sees_a_kernel_with_cgroup_v2_and_the_share(tmp_path: Path) -> None:
    (tmp_path / "question").write_text("how many controllers?")
    ended = run_in_vm("cat /coda/question; cp /sys/fs/cgroup/cgroup.controllers /coda/answer; exit 3", share=tmp_path)
    assert (ended.code, ended.out) == (3, "how many controllers?")
    assert {"cpu", "cpuset", "memory"} <= set((tmp_path / "answer").read_text().split())


def test_what_is_written_beside_the_share_does_not_reach_this_machine(tmp_path: Path) -> None:
    victim = tmp_path / "kept"
    victim.write_text("as it was")
    assert run_in_vm(f"echo changed > {victim}; cat {victim}").out == "changed\n"
    assert victim.read_text() == "as it was"


def test_a_command_that_takes_too_long_is_one_sentence() -> None:
    with pytest.raises(LabFailure, match=r"sleep 600 in the virtual machine: not done after 1 s\."):
        run_in_vm("sleep 600", timeout_s=1)


async def test_a_machine_without_answers_is_ended_with_all_there_is_to_see_of_it(tmp_path: Path) -> None:
    settings = Settings.from_environ()
    pieces = ensure_machine(settings, lambda _sentence: None)
    settings = replace(settings, cache=tmp_path / "cache")  # what is kept of real ones stays
    async with running(Machine(), pieces, tmp_path, settings) as booted:
        deaf = ("/bin/sh", "-c", "sleep 1; kill -STOP $PPID")
        with pytest.raises(LabFailure, match="no answer"):
            await booted.guest.run(*deaf, timeout_s=10)
        with pytest.raises(
            LabFailure, match=r"gave no answer for 5 s; what it was doing is in .*stuck\.log"
        ) as failure:
            await booted.until_over(stuck_s=5, look_s=1)
    console = (tmp_path / "console.log").read_text()
    assert "Kernel panic - not syncing: NMI" in console
    assert "task:guest" in console
    seen = (tmp_path / LOG).read_text()
    assert all(words in seen for words in ("(qemu-system-x86)", "VM status: running", "RIP="))
    assert "console.log; the last lines:" in str(failure.value)
    assert {path.name for path in (tmp_path / "cache" / "failed").iterdir()} == {LOG, CONSOLE}


async def test_a_machine_that_hangs_at_its_boot_is_booted_once_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_environ()
    pieces = ensure_machine(settings, lambda _sentence: None)
    hangs_once = tmp_path / "qemu"
    hangs_once.write_text(f'#!/bin/sh\nmkdir {tmp_path}/hung && exec sleep 1000\nexec {pieces.qemu} "$@"\n')
    hangs_once.chmod(0o755)
    settings = replace(settings, cache=tmp_path / "cache")
    async with running(Machine(), replace(pieces, qemu=hangs_once), tmp_path, settings, boot_timeout_s=60) as booted:
        assert (await booted.guest.run("/bin/true")).code == 0
    assert "booting it again" in caplog.text
    assert "(sleep)" in (tmp_path / "cache" / "failed" / LOG).read_text()


def test_the_machine_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = _START.format(f", share=__import__('pathlib').Path({str(tmp_path)!r})")
    environ = {**os.environ, MARK: str(tmp_path), "PYTHONPATH": python_path()}
    owner = subprocess.Popen([sys.executable, "-c", program], env=environ)
    try:
        machine = _machine_of(owner, str(tmp_path))
        owner.send_signal(signal.SIGKILL)
        assert select.select([machine], [], [], 60)[0], "the machine outlives its owner"
    finally:
        owner.kill()
        owner.wait()


def _machine_of(owner: subprocess.Popen[bytes], mark: str) -> int:
    """A descriptor of the qemu process that `owner` started."""
    while owner.poll() is None:
        for pid in marked(mark):
            if b"qemu-system" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return os.pidfd_open(pid)
    raise AssertionError("the owner ended before it started a machine")
