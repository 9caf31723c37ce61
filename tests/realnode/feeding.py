"""Runs inside the real node: plays the GPUs, as busy as the kernel lets a pod's container feed them.

Arguments: the emulated NVML's state file, the container's cgroup, the cores that its GPUs need, and their ids; nothing
but the file: GPUs that nobody uses. Each new pair of limits, of the container and of its pod, is printed as JSON.
In the machine, and not from outside: there it gets its turn as often as the agent that looks at the GPUs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from coda_lab.emulators.load import Trainer, utilisation
from coda_lab.emulators.nvml.devices import GIB, Device, Process
from coda_lab.emulators.nvml.state import NvmlState
from coda_lab.realnode.configuration import gpu_ids

LOOK_S = 0.5  # between two looks; a window settles in seconds


class Container:
    """What the kernel says of the container."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used_us = 0

    def limits(self) -> tuple[str, str]:
        """`cpu.max` of itself and of its pod."""
        return (self._folder / "cpu.max").read_text().strip(), (self._folder.parent / "cpu.max").read_text().strip()

    def first_pid(self) -> int:
        """Its own process, by the machine's pids."""
        return min(int(pid) for pid in (self._folder / "cgroup.procs").read_text().split())

    def works(self) -> bool:
        """Whether it has used CPU time since the last call."""
        before, self._used_us = self._used_us, int((self._folder / "cpu.stat").read_text().split()[1])
        return self._used_us > before


def feed(state: NvmlState, container: Container, trainer: Trainer, devices: Sequence[str]) -> None:
    """Until this process is killed. What uses no CPU feeds no GPU; its limit is never `max`."""
    process = Process(pid=container.first_pid(), memory_bytes=GIB)
    for device in devices:
        state.set_processes(device, [process])
    told: tuple[str, str] | None = None
    shown = -1.0
    while True:
        limits = container.limits()
        if limits != told:
            sys.stdout.write(json.dumps(limits) + "\n")
            sys.stdout.flush()
        quota, period = limits[0].split()
        share = utilisation(trainer, int(quota) / int(period), 1.0) if container.works() else 0.0
        if share != shown:
            for device in devices:
                state.set_utilisation(device, share)
        told, shown = limits, share
        time.sleep(LOOK_S)


def main(words: Sequence[str]) -> None:
    """Feed the GPUs, or only say that they are there."""
    gpus = [Device(uuid=uuid, minor=minor) for minor, uuid in enumerate(gpu_ids())]
    state = NvmlState(path=Path(words[0]), devices=gpus)
    if len(words) > 1:
        _state, folder, needed, *devices = words
        feed(state, Container(Path(folder)), Trainer(cores_needed=float(needed)), devices)


if __name__ == "__main__":
    main(sys.argv[1:])
