"""The client of the machine's guest program, against the real program, which runs on any Linux."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.host.ports import LOOPBACK, free_ports
from coda_lab.realnode.artifacts import ensure_guest
from coda_lab.realnode.guest import Guest, Service

pytestmark = pytest.mark.e2e  # the program is built first


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Guest]:
    """The program, reached through a forward of its own, as the machine reaches the API server."""
    program = ensure_guest(Settings.from_environ())
    port, forwarded = free_ports(2, random.Random())
    config = tmp_path / "guest.json"
    forwards = {f"{LOOPBACK}:{forwarded}": f"{LOOPBACK}:{port}"}
    config.write_text(json.dumps({"listen": f"{LOOPBACK}:{port}", "token": "secret", "forwards": forwards}))
    process = subprocess.Popen([program, "serve", config])
    try:
        yield Guest(port=forwarded, token="secret")
    finally:
        process.kill()
        process.wait()


@pytest_asyncio.fixture
async def guest(served: Guest) -> Guest:
    async with asyncio.timeout(30):
        await served.answers()
    return served


async def test_a_command_gives_its_output_and_its_code(guest: Guest) -> None:
    ended = await guest.run("/bin/sh", "-c", "cat; echo $WORD >&2; exit 4", stdin=b"in", environ={"WORD": "err"})
    assert (ended.code, ended.out, ended.err) == (4, "in", "err\n")
    with pytest.raises(LabFailure, match="ended with 4: err"):
        ended.check()


async def test_a_command_that_was_killed_says_by_what(guest: Guest) -> None:
    assert (await guest.run("/bin/sh", "-c", "kill -TERM $$")).code == -signal.SIGTERM


async def test_a_command_that_takes_too_long_is_killed_with_its_children(guest: Guest, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(LabFailure, match="not done after 1 s"):
        await guest.run("/bin/sh", "-c", f"sleep 1000 & echo $! > {pid_file}; wait", timeout_s=1.0)
    assert ends(int(pid_file.read_text()), within_s=5.0)


def ends(pid: int, *, within_s: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


async def test_commands_run_beside_each_other(guest: Guest, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    (await guest.run("/usr/bin/mkfifo", str(pipe))).check()
    reader = asyncio.create_task(guest.run("/bin/cat", str(pipe)))
    await guest.run("/bin/sh", "-c", f"echo met > {pipe}")  # waits for the reader
    assert (await reader).out == "met\n"


async def test_without_the_token_nothing_is_done(guest: Guest) -> None:
    with pytest.raises(LabFailure, match="not a request of this lab"):
        await replace(guest, token="guessed").run("/bin/true")


async def test_a_service_lives_until_it_is_ended_and_starts_once(guest: Guest, tmp_path: Path) -> None:
    service = Service(name="idler", argv=("/bin/sleep", "1000"), log=str(tmp_path / "log"))
    assert await guest.start(service) > 0
    assert await guest.is_running("idler")
    with pytest.raises(LabFailure, match="idler runs already"):
        await guest.start(service)
    assert await guest.end("idler") == -signal.SIGTERM
    assert not await guest.is_running("idler")
    assert await guest.start(service) > 0


async def test_what_is_not_there_is_one_sentence(guest: Guest) -> None:
    with pytest.raises(LabFailure, match="no service nobody"):
        await guest.end("nobody")
    with pytest.raises(LabFailure, match="no such file"):
        await guest.run("/no/such/program")
    with pytest.raises(LabFailure, match="cannot be reached"):
        await replace(guest, port=1).run("/bin/true")


def test_how_to_reach_it_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    Guest(port=4, token="t").save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Guest.load(path) == Guest(port=4, token="t")
    with pytest.raises(LabFailure, match="no virtual machine"):
        Guest.load(tmp_path / "absent")
