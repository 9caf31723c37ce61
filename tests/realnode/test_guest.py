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
import sys
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

RESTARTED = "short ended with 3 and is started again"

SPEAKING_ONCE = """
import os, socket, time
with open({pids!r}, "a") as pids:
    print(os.getpid(), file=pids)
assert os.environ["WATCHDOG_USEC"] == "500000"
path = os.environ["NOTIFY_SOCKET"].replace("@", "\\0")
time.sleep(1.0)  # the program takes its time to start
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1\\nWATCHDOG=1", path)
time.sleep(1000.0)
"""

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


async def test_a_service_that_ends_by_itself_is_started_again_until_the_host_ends_it(
    guest: Guest, tmp_path: Path
) -> None:
    pipe, log = tmp_path / "pipe", tmp_path / "log"
    (await guest.run("/usr/bin/mkfifo", str(pipe))).check()
    service = Service(name="short", argv=("/bin/sh", "-c", f"cat {pipe}; exit 3"), log=str(log), restarts=True)
    await guest.start(service)
    for word in ("one", "two"):
        (await guest.run("/bin/sh", "-c", f"echo {word} > {pipe}")).check()  # waits for the reader
    (await guest.run("/bin/sh", "-c", f"echo three > {pipe}")).check()
    assert log.read_text().splitlines()[:4] == ["one", RESTARTED, "two", RESTARTED]
    assert await guest.end("short") in (3, -signal.SIGTERM)
    await asyncio.sleep(1.5)  # a restart would come after a second
    assert not await guest.is_running("short")


async def test_a_silent_service_is_aborted_once_it_has_spoken(guest: Guest, tmp_path: Path) -> None:
    pid_file, log = tmp_path / "pids", tmp_path / "log"
    program = SPEAKING_ONCE.format(pids=str(pid_file))
    service = Service(name="silent", argv=(sys.executable, "-c", program), log=str(log), restarts=True, watchdog_s=0.5)
    first = await guest.start(service)
    assert await asyncio.to_thread(ends, first, within_s=30.0)
    async with asyncio.timeout(30):
        while len(pid_file.read_text().split()) < 2:
            await asyncio.sleep(0.05)
    assert log.read_text() == f"silent ended with {-signal.SIGABRT} and is started again\n"
    await guest.end("silent")


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
