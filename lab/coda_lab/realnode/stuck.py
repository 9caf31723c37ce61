"""Looks at a virtual machine that is stuck, from outside: emulators hang, if rarely."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from coda_lab.host.errors import LabFailure
from coda_lab.host.processes import Process
from coda_lab.realnode.guest import Guest

MONITOR = "monitor"
"""qemu's monitor, a socket in the machine's folder."""

CONSOLE = "console.log"
"""In the machine's folder: what its kernel says."""

LOG = "stuck.log"
"""In the machine's folder: what was seen of it when it was stuck."""

_LAST_WORDS_S = 60.0  # for the kernel to print all of its tasks on an emulated serial line
_ASKED = ("info status", "info cpus", "info registers -a", "info lapic", "info irq")
_QUIET_S = 2.0  # the monitor has no more to say after so long


async def until_stuck(guest: Guest, folder: str, *, stuck_s: float, look_s: float) -> None:
    """Return once no command that looks at that folder of the machine was answered for `stuck_s`."""
    answered_s = time.monotonic()
    while time.monotonic() - answered_s < stuck_s:
        await asyncio.sleep(look_s)  # a machine that falls silent sends no event
        with contextlib.suppress(LabFailure):
            await guest.run("/bin/test", "-d", folder, timeout_s=look_s)
            answered_s = time.monotonic()


async def examine(process: Process, folder: Path, kept: Path) -> None:
    """Write `LOG`, let the kernel print its tasks on the console, and copy both to `kept`. Never raises OSError.

    The kernel panics at a non-maskable interrupt, and so the machine ends if it is not stuck itself."""
    with contextlib.suppress(OSError):  # it ends meanwhile, or the disk is full: the caller's failure counts
        await _ask(process, folder / LOG, folder / MONITOR)
    with contextlib.suppress(OSError):
        _keep((folder / LOG, folder / CONSOLE), kept)


def _keep(logs: Iterable[Path], kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for log in logs:
        if log.exists():
            shutil.copyfile(log, kept / log.name)


async def _ask(process: Process, log: Path, monitor: Path) -> None:
    with log.open("w") as sink:
        sink.write("\n".join((*_threads(process.id.pid), "")))
        reader, writer = await asyncio.open_unix_connection(monitor)
        try:
            await _said(reader)  # its greeting
            for command in (*_ASKED, "nmi"):
                writer.write(f"{command}\n".encode())
                echo, _, said = (await _said(reader)).partition("\n")
                sink.write(f"\n{command}\n{said or echo}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.ended(), _LAST_WORDS_S)
        finally:
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
