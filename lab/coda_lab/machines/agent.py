"""`python -m coda_lab.machines.agent --folder F --node N`: the real agent, on an emulated machine.

Only the source of the node's files differs. NVML, the kubelet's socket, the API server, the loop and all decisions are
the agent's own, and so are its settings (CODA_*) and its other options.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import NoReturn

from coda_agent.__main__ import main as agent_main
from coda_agent.node import Node
from coda_agent.settings import Settings
from coda_lab.emulators.nvml.library import build, environment_for
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from coda_lab.host.paths import Settings as LabSettings
from coda_lab.machines.paths import MachinePlaces
from coda_lab.machines.remote_files import Line, remote_files

log = logging.getLogger("coda_lab.machines.agent")


def main() -> None:
    """Read our two options; the agent does the rest."""
    parser = argparse.ArgumentParser(prog="python -m coda_lab.machines.agent", description=__doc__, add_help=False)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--node", required=True)
    options, rest = parser.parse_known_args()
    places = MachinePlaces(folder=options.folder, node=options.node)
    os.chdir(places.folder)
    lab = LabSettings.from_environ()
    state = Path(lab.environ[STATE_VARIABLE])
    os.environ.update(environment_for(build(lab.cache), state, lab.environ))  # for the process that asks the driver

    def open_node(settings: Settings, reads_only: bool) -> Node:
        files = remote_files(Line(places.files_socket, lost=_end_with_the_machine), places.sys)
        return Node(settings, files=files, reads_only=reads_only)

    agent_main(rest, open_node)


def _end_with_the_machine() -> NoReturn:
    log.critical("the emulated machine is gone, and its agent with it")
    os._exit(1)


if __name__ == "__main__":
    main()
