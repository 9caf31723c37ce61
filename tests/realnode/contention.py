"""Runs inside the real node: plays resctrl and GPUs, so that a pod's memory traffic slows down a training pod.

Arguments: the emulated NVML's state file; the training pod's process and its GPUs, `PID=ID,ID`; the other pod's
process; a file. As soon as the file is there, the other pod wants more memory bandwidth than a socket has. The kernel
has no `/sys/fs/resctrl` and lets nobody make one. So `/sys/fs` is covered first, by a folder with the cgroups and a
resctrl.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from coda_lab.emulators.load import Load, Trainer, utilisation
from coda_lab.emulators.nvml.devices import GIB, Device, Process
from coda_lab.emulators.nvml.state import NvmlState
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.mounting import mounted
from coda_lab.emulators.resctrl.profiles import GB, PROFILES
from coda_lab.emulators.resctrl.tasks import RealTasks, Task
from coda_lab.emulators.resctrl.traffic import advance, served_shares
from coda_lab.realnode.configuration import gpu_ids

RESCTRL = Path("/sys/fs/resctrl")
PEAK_GB_PER_S = 160
STEP_S = 0.5
COVER = """
set -e
mkdir /run/fs
mount -t tmpfs fs /run/fs
mkdir /run/fs/cgroup /run/fs/resctrl
mount --rbind /sys/fs/cgroup /run/fs/cgroup
mount --rbind /run/fs /sys/fs
"""


class FewTasks(RealTasks):
    """The threads that anybody asked for, and those with a load. To look at every thread takes seconds there."""

    def all(self) -> Iterable[Task]:
        known = {*self.loads, *self._tasks}
        return tuple(task for task in map(self.find, sorted(known)) if task is not None)


def main(words: Sequence[str]) -> None:
    """Until this process is told to end."""
    path, training, other, file = words
    trainer_pid, _, ids = training.partition("=")
    if not RESCTRL.exists():
        subprocess.run(["sh", "-c", COVER], check=True)
    tasks = FewTasks()
    tasks.loads = {int(trainer_pid): "training", int(other): "other"}
    machine = Machine(PROFILES["intel"], tasks)
    machine.loads["training"] = Load(name="training", domain=0, cores=4, bytes_per_s=10 * GB)
    state = NvmlState(path=Path(path), devices=[Device(uuid=uuid, minor=at) for at, uuid in enumerate(gpu_ids())])
    for device in ids.split(","):
        state.set_processes(device, [Process(pid=int(trainer_pid), memory_bytes=GIB)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with mounted(machine, RESCTRL):
        (RESCTRL / "BE").mkdir()  # of another program
        last_s = time.monotonic()
        while True:
            before_s, last_s = last_s, time.monotonic()
            if Path(file).exists():
                wanted = 1.25 * PEAK_GB_PER_S * GB
                machine.loads["other"] = Load(name="other", domain=0, cores=16, bytes_per_s=wanted)
            with machine.lock:
                advance(machine, last_s - before_s)
                share = served_shares(machine).get("training", 1.0)
            with state.batch():
                for device in ids.split(","):
                    state.set_utilisation(device, utilisation(Trainer(cores_needed=1), 1.0, share))
            time.sleep(STEP_S)


if __name__ == "__main__":
    main(sys.argv[1:])
