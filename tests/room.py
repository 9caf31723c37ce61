"""Room for one more module with a local control plane: how many run at once follows how busy the machine is.

Such modules mostly wait, for leases and for windows of a tuning: with three at once a fast machine is idle for half of
the time. On a slow one, or beside other work, three keep both cores busy, and more would only end each other's leases.
So three may always run. Each further one begins once a third of the cores was idle for a while.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

from coda_lab.host.file_lock import Locked, locked

ALWAYS = 3
IDLE = 0.35  # of all cores, on average
LOOK_S = 8.0  # the start of a control plane takes nine seconds of a core: who looks next sees it
MEMORY_KB = 3 << 20  # what one module needs at most, and the compiler beside it


class Room:
    """What one worker holds while it runs a module. The kernel gives it back when the worker ends."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the same for all workers of a run."""
        self._folder = folder
        self._module: ModuleType | None = None
        self._held = ExitStack()

    def enter(self, module: ModuleType) -> None:
        """Wait until there is room for this module; at once if it is the one that runs."""
        if module is self._module:
            return
        self.leave()
        while not self._is_taken():
            with locked(self._folder / "looking", wait=True):  # one at a time: else all see the same idle cores
                if self._is_taken() or is_idle():
                    break
        self._module = module

    def leave(self) -> None:
        """Give the room to others."""
        self._held.close()
        self._module = None

    def _is_taken(self) -> bool:
        for number in range(ALWAYS):
            try:
                self._held.enter_context(locked(self._folder / str(number), wait=False))
            except Locked:
                continue
            return True
        return False


def is_idle() -> bool:
    """True if enough of the machine was idle for a while from now on, and there is memory. False where nobody knows."""
    try:
        before = _cpu_times()
        time.sleep(LOOK_S)  # a mean over this time is asked for
        after = _cpu_times()
        return after[0] - before[0] > IDLE * (after[1] - before[1]) and _available_kb() > MEMORY_KB
    except OSError:
        return False


def _cpu_times() -> tuple[int, int]:
    """Idle time and all time of all cores, in ticks. What runs at low priority gives way: it counts as idle."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return idle + iowait + nice, user + nice + system + idle + iowait + irq + softirq + steal


def _available_kb() -> int:
    (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1])
