"""An agent on an emulated machine whose driver hangs in the kernel: `python -m tests.agent.loop.hanging FOLDER STATE`.

It throttles a pod, lets the driver hang, runs some rounds more, and then as the real program until SIGTERM. STATE: the
file of the NVML library, behind a mount that can stop answering. Prints one line per step."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from coda_agent.gpus.driver_process import DriverPatience, DriverProcess
from coda_lab.emulators.agent_rig import Rig
from coda_lab.emulators.node import EmulatedNode
from coda_lab.emulators.nvml.library import environment_for
from coda_lab.emulators.silent_file import HANG
from tests.agent.gpus.rig import built_library
from tests.agent.loop.test_contention import contended, is_untouched


class Driver(DriverProcess):
    """Patient until it hangs: the machine's time is not the clock's."""

    def __init__(self) -> None:
        super().__init__(DriverPatience(answer_s=20.0))

    def hangs(self) -> int:
        """Return the process that will never answer."""
        self._patience = DriverPatience(answer_s=0.05)
        assert self._process is not None
        return self._process.pid


async def main(folder: Path, state: Path) -> None:
    """Print `throttled`, the driver's process, and after SIGTERM whether all is as it was."""
    os.environ.update(environment_for(built_library(), state, os.environ))
    node, driver = EmulatedNode(folder), Driver()
    rig = Rig(node, folder, driver)
    await contended(rig)
    say("throttled" if rig.agent.throttles else "not throttled")
    (folder / HANG).touch()
    pid = driver.hangs()
    await rig.run(40)  # longer than the patience with a process
    senses = await rig.loop.round()
    say(f"{pid} {senses.gpus.why}")
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    say("ready")
    await rig.loop.run(stopping)
    say("untouched" if is_untouched(rig) else "left behind")
    rig.agent.close()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
