"""The emulator as a process: `python -m coda_lab.emulators.resctrl --profile intel --mount DIR --control SOCKET`.

Prints `ready` once the directory can be used, and unmounts on SIGTERM and SIGINT."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from coda_lab.emulators.resctrl.control import serving
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.mounting import mounted
from coda_lab.emulators.resctrl.profiles import PROFILES
from coda_lab.emulators.resctrl.tasks import FakeTasks, RealTasks
from coda_lab.emulators.resctrl.traffic import STEP_S, advance

ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop; 1 with a sentence when the directory cannot be mounted."""
    wanted = _parser().parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # waited for, so that none is lost before the wait begins
    machine = Machine(PROFILES[wanted.profile], RealTasks() if wanted.tasks == "real" else FakeTasks())
    try:
        with mounted(machine, wanted.mount), serving(machine, wanted.control):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            pass_time(machine, _is_told_to_end, live=wanted.live)
    except OSError as failure:
        sys.stderr.write(f"cannot emulate resctrl at {wanted.mount}: {failure}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m coda_lab.emulators.resctrl", description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="intel", help="the hardware")
    parser.add_argument("--mount", type=Path, required=True, help="an existing directory")
    parser.add_argument("--control", type=Path, required=True, help="where to create the control socket")
    parser.add_argument("--tasks", choices=("fake", "real"), default="fake", help="invented threads, or this machine's")
    parser.add_argument("--live", action="store_true", help="let time pass by itself, not only by `advance`")
    return parser


def pass_time(machine: Machine, is_told_to_end: Callable[[float | None], bool], *, live: bool) -> None:
    """Let time pass until told to end. Checks for that every few seconds (None: waits without limit); `live`: fake time
    follows the clock in steps of a second.
    """
    last_s = time.monotonic()
    while not is_told_to_end(STEP_S if live else None):
        now_s = time.monotonic()
        advance(machine, now_s - last_s)
        last_s = now_s


def _is_told_to_end(within_s: float | None) -> bool:
    if within_s is None:
        signal.sigwait(ENDING)
        return True
    return signal.sigtimedwait(ENDING, within_s) is not None


if __name__ == "__main__":
    sys.exit(main())
