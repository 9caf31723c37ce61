"""A virtual machine whose root file system is this machine's, with a kernel of its own: real cgroup v2 anywhere.

Always emulated, never KVM: where KVM is offered it is often nested and hangs. The machine reads the host's files and
writes to its own memory. One folder, `/coda` in the machine, is shared both ways. The machine dies with its starter.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import shutil
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from coda_lab.host import processes
from coda_lab.host.errors import LabFailure, last_lines
from coda_lab.host.paths import Settings, node_sources
from coda_lab.host.ports import LOOPBACK, free_ports
from coda_lab.host.processes import Process
from coda_lab.host.temp_folder import temporary_folder
from coda_lab.realnode.artifacts import MachinePieces, ensure_machine
from coda_lab.realnode.guest import Ended, Guest
from coda_lab.realnode.initramfs import cpio
from coda_lab.realnode.kernel import Kernel
from coda_lab.realnode.stuck import CONSOLE, LOG, MONITOR, examine, until_stuck

log = logging.getLogger(__name__)

SHARE = "/coda"
"""The path of the shared folder in the machine."""

HOST = "10.0.2.2"
"""The address of this machine seen from there: it reaches programs on the loopback here. qemu's user network."""

BOOT_TIMEOUT_S = 120.0  # of the first try; 30 s are usual on two cores under heavy load

STUCK_S = 240.0
"""So long without an answer is stuck. Under heavy load answers take seconds; a grace of 30 s is in each try."""

_LOOK_S = 10.0

_PRIORITY = -5  # three times the CPU time of another program's thread
_BEFORE_OTHERS = (
    "sh",
    "-c",
    f'{{ echo {_PRIORITY} >/proc/self/autogroup; }} 2>/dev/null; exec nice -n {_PRIORITY} "$@"',
    "sh",
)
"""Starts a command that goes before others. Linux compares the processes of a session only with each other, but for the
file."""
_ADDRESS, _PORT = "10.0.2.15", 7000  # the first address of qemu's user network
_INSIDE = "/run/coda-vm"
_START = f"""#!/bin/sh
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount --make-rshared /  # as systemd does: what is mounted later then reaches containers that ask for it
exec {_INSIDE}/guest serve {_INSIDE}/guest.json > /dev/console 2>&1
"""
_BOOT_WORDS = (
    "console=ttyS0",
    *("unknown_nmi_panic", "panic_print=65"),  # such an interrupt then shows what each task and CPU does
    "panic=-1",  # a panic ends the machine, so that its waiter learns of it
    "mitigations=off",
    "tsc=reliable",  # else reading the clock goes through an emulated timer
    "random.trust_cpu=on",
    "net.ifnames=0",
    "quiet",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine to boot. `forwards`: addresses there that lead to addresses elsewhere, such as to `HOST`.

    `memory_mib` also limits what can be written there. `port`: takes commands here; 0 takes a free one.
    """

    name: str = "coda-vm"
    cores: int = 2
    memory_mib: int = 2048
    port: int = 0
    forwards: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def running(
    machine: Machine,
    pieces: MachinePieces,
    folder: Path,
    settings: Settings,
    *,
    boot_timeout_s: float = BOOT_TIMEOUT_S,
) -> AsyncIterator[Running]:
    """A booted machine that takes commands, for the time of a block. Raises LabFailure.

    A boot that fails or hangs is tried once more, for twice as long. `folder` keeps the machine's files: `share/`,
    `console.log` and `machine.json`. Call it from the main thread.
    """
    share = folder / "share"
    share.mkdir(parents=True, exist_ok=True)
    guest = Guest(port=machine.port or free_ports(1, random.SystemRandom())[0], token=secrets.token_hex(16))
    guest.save(folder / "machine.json")
    _prepare(folder / "inside", machine, guest, pieces)
    initramfs = folder / "initramfs"
    initramfs.write_bytes(_initramfs(pieces))
    command = qemu_command(machine, pieces.qemu, pieces.kernel, folder, guest.port)
    booted = Running.of(command, guest, folder, settings)
    try:
        try:
            await booted.guarded(guest.answers(), timeout_s=boot_timeout_s, doing="booting")
        except LabFailure:
            await examine(booted.process, folder, booted.kept)
            booted.process.end_at_once()
            log.warning("the virtual machine did not boot; its logs are in %s; booting it again", booted.kept)
            booted = Running.of(command, guest, folder, settings)
            await booted.guarded(guest.answers(), timeout_s=2 * boot_timeout_s, doing="booting")
        yield booted
    finally:
        booted.process.end_at_once()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running machine, for its starter."""

    guest: Guest
    process: Process
    folder: Path
    kept: Path  # where its logs stay if it is stuck

    @classmethod
    def of(cls, command: tuple[str, ...], guest: Guest, folder: Path, settings: Settings) -> Running:
        """The machine of a command line of qemu, just started."""
        environ = dict(settings.environ)
        process = processes.start(command, environ=environ, log=folder / "qemu.log", folder=folder)
        return cls(guest=guest, process=process, folder=folder, kept=settings.cache / "failed")

    async def until_over(self, *, stuck_s: float = STUCK_S, look_s: float = _LOOK_S) -> NoReturn:
        """Wait until the machine ends, or end it once it is stuck, as a hardware watchdog would.

        Always raises LabFailure, which says which it was."""
        looking = asyncio.ensure_future(until_stuck(self.guest, SHARE, stuck_s=stuck_s, look_s=look_s))
        end = asyncio.ensure_future(self.process.ended())
        try:
            await asyncio.wait({looking, end}, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                raise self.failure(f"ended with exit code {end.result()}")
            await examine(self.process, self.folder, self.kept)
            raise self.failure(f"gave no answer for {stuck_s:.0f} s; what it was doing is in {self.kept / LOG}")
        finally:
            for pending in (looking, end):
                pending.cancel()
            await asyncio.gather(looking, end, return_exceptions=True)

    async def guarded(self, wanted: Coroutine[Any, Any, object], *, timeout_s: float, doing: str) -> None:
        """Wait for `wanted`. Raises LabFailure if the machine ends first, or after `timeout_s`."""
        task = asyncio.ensure_future(wanted)
        end = asyncio.ensure_future(self.process.ended())
        try:
            done, _ = await asyncio.wait({task, end}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                task.result()
                return
        finally:
            for pending in (task, end):
                pending.cancel()
            await asyncio.gather(task, end, return_exceptions=True)
        raise self.failure(f"{'ended' if done else f'was not done after {timeout_s:.0f} s'} while {doing}")

    def failure(self, what: str) -> LabFailure:
        """What to raise when the machine did that: with the end of its console, or of qemu's log if that is empty."""
        console = self.folder / CONSOLE
        said = console if console.exists() and console.stat().st_size > 0 else self.folder / "qemu.log"
        return LabFailure(f"The virtual machine {what}.", log=said, last_lines=last_lines(said))


def run_in_vm(
    command: str,
    *,
    share: Path | None = None,
    timeout_s: float = 120.0,
    machine: Machine | None = None,
    settings: Settings | None = None,
) -> Ended:
    """Boot a machine, run a shell command there as root, and end the machine: under 30 s plus the command's time.

    `share` is `/coda` there; None: an empty folder. Not for use inside an event loop. Raises LabFailure.
    """
    settings = settings or Settings.from_environ()
    pieces = ensure_machine(settings, lambda _sentence: None)
    with temporary_folder() as folder:
        if share is not None:
            (folder / "share").symlink_to(share.resolve())
        return asyncio.run(_run_once(command, timeout_s, machine or Machine(), pieces, folder, settings))


async def _run_once(
    command: str, timeout_s: float, machine: Machine, pieces: MachinePieces, folder: Path, settings: Settings
) -> Ended:
    async with running(machine, pieces, folder, settings) as booted:
        return await booted.guest.run("/bin/sh", "-c", command, timeout_s=timeout_s)


def qemu_command(machine: Machine, qemu: Path, kernel: Kernel, folder: Path, port: int) -> tuple[str, ...]:
    """The command line. Three file systems: this machine's root, the share, and what `_prepare` wrote.

    It goes before other programs where it may (`nice` says so, and starts it all the same): a machine that stands still
    for a second sees nothing of it, and what is measured in it is then wrong."""
    return (
        *_BEFORE_OTHERS,
        *(str(qemu), "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-smp", f"{machine.cores},sockets={2 - machine.cores % 2}", "-m", str(machine.memory_mib)),
        *("-kernel", str(kernel.image), "-initrd", str(folder / "initramfs"), "-append", " ".join(_BOOT_WORDS)),
        *("-serial", f"file:{folder / CONSOLE}"),
        *("-monitor", f"unix:{MONITOR},server=on,wait=off"),
        *("-netdev", f"user,id=net,hostfwd=tcp:{LOOPBACK}:{port}-{_ADDRESS}:{_PORT}"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
        *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
        *("-fsdev", f"local,id=share,path={folder / 'share'},security_model=none,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=share,mount_tag=share"),
        *("-fsdev", f"local,id=machine,path={folder / 'inside'},security_model=none,readonly=on"),
        *("-device", "virtio-9p-pci,fsdev=machine,mount_tag=machine"),
        *("-device", "virtio-rng-pci"),
    )


def _prepare(inside: Path, machine: Machine, guest: Guest, pieces: MachinePieces) -> None:
    """Write the files that the machine reads at `_INSIDE`: its name, the program that takes commands, and how to start
    it.
    """
    shutil.rmtree(inside, ignore_errors=True)  # a machine that ran here before
    inside.mkdir(mode=0o700)
    listen = f"{_ADDRESS}:{_PORT}"
    config = {"listen": listen, "token": guest.token, "forwards": dict(machine.forwards)}
    (inside / "guest.json").write_text(json.dumps(config))
    (inside / "hostname").write_text(machine.name + "\n")
    shutil.copyfile(pieces.guest, inside / "guest")
    (inside / "start").write_text(_START)
    for name in ("guest", "start"):
        (inside / name).chmod(0o755)


def _initramfs(pieces: MachinePieces) -> bytes:
    modules = pieces.kernel.modules
    files = {"init": (node_sources() / "init.sh").read_bytes(), "bin/busybox": pieces.busybox.read_bytes()}
    files |= {f"modules/{module.name}": module.read_bytes() for module in modules}
    files["modules/order"] = "".join(f"{module.name}\n" for module in modules).encode()
    return cpio(files)
