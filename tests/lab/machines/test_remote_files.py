"""The agent's file access to a machine in another process: what it reads, writes and is refused is as without it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from coda.errors import Outage
from coda_agent.host.files import Files
from coda_lab.emulators.node import EmulatedNode
from coda_lab.machines.file_server import answer, serving
from coda_lab.machines.remote_files import Line, remote_files


class Gone(Exception):
    """What a test's agent does when its machine is gone."""


def gone() -> NoReturn:
    raise Gone


async def over_the_wire(machine: EmulatedNode, folder: Path, work: Callable[[Files], None]) -> int:
    """Run `work` in a thread, as the agent does; how many questions the machine was asked."""
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    async with serving(machine.files, folder / "s", before=count):
        line = Line(folder / "s", lost=gone)
        await asyncio.to_thread(work, remote_files(line, folder / "sys"))
    with pytest.raises(Gone):
        await asyncio.to_thread(line.ask, "proc", "listdir", ".")
    line.close()
    return asked


@pytest.fixture
def machine(tmp_path: Path) -> EmulatedNode:
    return EmulatedNode(tmp_path)


async def test_the_trees_read_alike(machine: EmulatedNode, tmp_path: Path) -> None:
    machine.start("a", cores=2)

    def compare(files: Files) -> None:
        for name in ("proc", "cgroup", "resctrl"):
            here, there = getattr(machine.files, name), getattr(files, name)
            assert there.listdir() == here.listdir()
            assert there.directories() == here.directories()
        assert files.cgroup.exists("kubepods.slice/cpu.max")
        assert not files.cgroup.exists("nowhere")
        assert files.proc.read_text("sys/kernel/random/boot_id").strip() == machine.proc.boot_id

    assert await over_the_wire(machine, tmp_path, compare) == 9


async def test_writes_are_done_there_and_refusals_keep_their_errno(machine: EmulatedNode, tmp_path: Path) -> None:
    def work(files: Files) -> None:
        files.resctrl.mkdir("coda")
        assert "coda" in machine.machine.groups
        files.resctrl.write("coda/schemata", "MB:0=50\n")
        files.resctrl.rmdir("coda")
        with pytest.raises(FileNotFoundError):
            files.cgroup.read_text("nowhere/cpu.max")
        with pytest.raises(OSError, match=f"Errno {errno.EINVAL}"):
            files.cgroup.write("kubepods.slice/cpu.max", "nonsense")
        with pytest.raises(OSError, match="leaves its root"):
            files.resctrl.rename("a", "../b")
        with pytest.raises(OSError, match="longer than"):
            files.resctrl.read_text("schemata", most_bytes=3)

    await over_the_wire(machine, tmp_path, work)


def test_a_machine_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Outage, match="does not answer"):
        Line(tmp_path / "s", lost=gone)


@pytest.mark.parametrize("line", [b'["sys", "read", ["x"]]', b'["proc", "unlink", ["x"]]'])
def test_only_the_trees_operations_can_be_asked_for(machine: EmulatedNode, line: bytes) -> None:
    with pytest.raises(AssertionError, match="no operation"):
        answer(machine.files, line)
