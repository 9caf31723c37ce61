"""Notices that a virtual machine is stuck, and keeps what there is to see of it: emulators hang, if rarely.

A stuck machine is ended, as a hardware watchdog would. Its owner's owner may boot it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import NoReturn

from coda_lab.host.errors import LabFailure
from coda_lab.realnode.guest import Guest
from coda_lab.realnode.vm import MONITOR, SHARE, Running

LOG = "stuck.log"
"""In the machine's folder: what was seen of it from outside."""

STUCK_S = 240.0
"""So long without an answer. On two cores under heavy load answers take seconds; a grace of 30 s is in each try."""

_LOOK_S = 10.0
_LAST_WORDS_S = 60.0  # for the kernel to print all of its tasks on an emulated serial line
_ASKED = ("info status", "info cpus", "info registers -a", "info lapic", "info irq")
_QUIET_S = 2.0  # the monitor has no more to say after so long


async def until_over(booted: Running, *, stuck_s: float = STUCK_S, look_s: float = _LOOK_S) -> NoReturn:
    """Wait until the machine ends, or end it once it is stuck. Always raises LabFailure, which says which it was."""
    looking = asyncio.ensure_future(_until_stuck(booted.guest, stuck_s, look_s))
    end = asyncio.ensure_future(booted.process.ended())
    try:
        await asyncio.wait({looking, end}, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            raise booted.failure(f"ended with exit code {end.result()}")
        await _examine(booted)
        raise booted.failure(f"gave no answer for {stuck_s:.0f} s; what it was doing is in {booted.folder / LOG}")
    finally:
        for pending in (looking, end):
            pending.cancel()
        await asyncio.gather(looking, end, return_exceptions=True)


async def _until_stuck(guest: Guest, stuck_s: float, look_s: float) -> None:
    """Return once no command that looks at the shared folder was answered for `stuck_s`."""
    answered_s = time.monotonic()
    while time.monotonic() - answered_s < stuck_s:
        await asyncio.sleep(look_s)
        with contextlib.suppress(LabFailure):
            await guest.run("/bin/test", "-d", SHARE, timeout_s=look_s)
            answered_s = time.monotonic()


async def _examine(booted: Running) -> None:
    """Write `LOG`, and let the kernel print its tasks on the console: it panics at a non-maskable interrupt."""
    log = booted.folder / LOG
    log.write_text("\n".join((*_threads(booted.process.id.pid), "")))
    try:
        reader, writer = await asyncio.open_unix_connection(booted.folder / MONITOR)
    except OSError as error:
        log.open("a").write(f"qemu's monitor cannot be reached: {error}\n")
        return
    await _said(reader)  # its greeting
    with log.open("a") as sink:
        for command in (*_ASKED, "nmi"):
            writer.write(f"{command}\n".encode())
            echo, _, said = (await _said(reader)).partition("\n")
            sink.write(f"\n{command}\n{said or echo}")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(booted.process.ended(), _LAST_WORDS_S)
    writer.close()


async def _said(reader: asyncio.StreamReader) -> str:
    """What the monitor says until it falls silent."""
    said = b""
    with contextlib.suppress(TimeoutError):
        while chunk := await asyncio.wait_for(reader.read(1 << 16), _QUIET_S):
            said += chunk
    return said.decode(errors="replace").replace("\r", "").replace("(qemu) ", "")


def _threads(pid: int) -> list[str]:
    """Each thread of qemu: its name, state, CPU time and what it waits for in this machine's kernel."""
    lines = ["thread, state, user and system ticks, waits in"]
    for thread in sorted(Path(f"/proc/{pid}/task").iterdir()):
        with contextlib.suppress(OSError):
            name, _, rest = (thread / "stat").read_text().rpartition(")")
            fields = rest.split()
            lines.append(f"{name}) {fields[0]} {fields[11]} {fields[12]} {(thread / 'wchan').read_text()}")
    return lines
