"""Runs inside the real node: plays the GPUs, as busy as the kernel lets all containers of a job feed them.

Arguments: the emulated NVML's state file, the cores that each rank needs, and for each rank its container's cgroup and
its GPUs: `FOLDER=ID,ID`. Nothing but the file: GPUs that nobody uses. Each new set of limits is printed as JSON: of
every container and of its pod. In the machine, and not from outside: there it gets its turn as often as the agent that
looks at the GPUs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coda_lab.emulators.load import Trainer, utilisation
from coda_lab.emulators.nvml.devices import GIB, Device, Process
from coda_lab.emulators.nvml.state import NvmlState
from coda_lab.realnode.configuration import gpu_ids

LOOK_S = 0.5  # between two looks; a window settles in seconds
IDLE_S = 5.0  # without CPU time: on a busy machine a rank that works gets none for a second or two


@dataclass(slots=True, kw_only=True)
class Rank:
    """What the kernel says of its container."""

    folder: Path
    devices: tuple[str, ...]
    used_us: int = 0
    worked_s: float = 0.0

    @classmethod
    def from_word(cls, word: str) -> Rank:
        """As the command line has it."""
        folder, _, devices = word.partition("=")
        return cls(folder=Path(folder), devices=tuple(devices.split(",")))

    def limits(self) -> tuple[str, str]:
        """`cpu.max` of its container and of its pod."""
        return (self.folder / "cpu.max").read_text().strip(), (self.folder.parent / "cpu.max").read_text().strip()

    def first_pid(self) -> int:
        """Its own process, by the machine's pids."""
        return min(int(pid) for pid in (self.folder / "cgroup.procs").read_text().split())

    def cores(self) -> float:
        """That it may use, or none if it has used no CPU time for a while. Its limit is never `max`."""
        before, self.used_us = self.used_us, int((self.folder / "cpu.stat").read_text().split()[1])
        now_s = time.monotonic()
        if self.used_us > before:
            self.worked_s = now_s
        quota, period = self.limits()[0].split()
        return int(quota) / int(period) if now_s - self.worked_s < IDLE_S else 0.0


def feed(state: NvmlState, trainer: Trainer, ranks: Sequence[Rank]) -> None:
    """Until this process is killed. All GPUs are as busy as the slowest rank feeds its own."""
    devices = [device for rank in ranks for device in rank.devices]
    for rank in ranks:
        process = Process(pid=rank.first_pid(), memory_bytes=GIB)
        for device in rank.devices:
            state.set_processes(device, [process])
    told: list[str] = []
    shown = -1.0
    while True:
        limits = [limit for rank in ranks for limit in rank.limits()]
        if limits != told:
            sys.stdout.write(json.dumps(limits) + "\n")
            sys.stdout.flush()
        cores = min(rank.cores() for rank in ranks)
        share = utilisation(trainer, cores, 1.0) if cores else 0.0
        if share != shown:
            with state.batch():
                for device in devices:
                    state.set_utilisation(device, share)
        told, shown = limits, share
        time.sleep(LOOK_S)


def main(words: Sequence[str]) -> None:
    """Feed the GPUs, or only say that they are there."""
    gpus = [Device(uuid=uuid, minor=minor) for minor, uuid in enumerate(gpu_ids())]
    state = NvmlState(path=Path(words[0]), devices=gpus)
    if len(words) > 1:
        _state, needed, *ranks = words
        feed(state, Trainer(cores_needed=float(needed)), [Rank.from_word(word) for word in ranks])


if __name__ == "__main__":
    main(sys.argv[1:])
