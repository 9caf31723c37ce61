"""Command lines and environments of the machines' process and of the agents, as parts of a local cluster."""

from __future__ import annotations

import json
from typing import Final

from coda_lab.emulators.nvml.state import STATE_VARIABLE
from coda_lab.emulators.resctrl.profiles import PROFILES
from coda_lab.kubelets.nodes import node_specs
from coda_lab.machines.paths import MachinePlaces
from coda_lab.spec import ClusterSpec, Layout

HARDWARE: Final = "intel"
SAMPLES_PER_WINDOW: Final = 30  # half of them count and 10 are needed: samples may be late on a busy machine
MOST_ROUND_S: Final = 1.0
SETTLE_SHARE: Final = 0.2
PROGRESS_S: Final = 2.0  # people watch


def machines_command(spec: ClusterSpec, layout: Layout) -> tuple[str, ...]:
    """Arguments of `coda_lab.machines`."""
    arguments = {
        "--kubeconfig": layout.kubeconfig("machines"),
        "--nodes": spec.nodes,
        "--count": spec.agents,
        "--profile": HARDWARE,
        "--folder": layout.machines,
    }
    return tuple(str(word) for pair in arguments.items() for word in pair)


def agent_command(number: int, spec: ClusterSpec, layout: Layout) -> tuple[str, ...]:
    """Arguments of `coda_lab.machines.agent`."""
    return ("--folder", str(layout.machines), "--node", node_specs(spec.nodes, racks=spec.racks)[number].name)


def agent_environ(number: int, spec: ClusterSpec, layout: Layout) -> dict[str, str]:
    """The agent's settings: a short window, with as many samples in it as a decision needs."""
    node = node_specs(spec.nodes, racks=spec.racks)[number].name
    places = MachinePlaces(folder=layout.machines, node=node)
    hardware = PROFILES[HARDWARE]
    return {
        "CODA_NODE_NAME": node,
        "CODA_STATE_DIR": str(places.disk),
        "CODA_PODS_DIR": str(places.pods),
        "CODA_STOP_NOTICES": "true",
        "CODA_PROGRESS_S": f"{PROGRESS_S:g}",
        "CODA_POD_RESOURCES": str(places.kubelet_socket),
        "CODA_PEAK_GB_PER_S": json.dumps(dict.fromkeys(hardware.domains, hardware.peak_bytes_per_s / 1e9)),
        "CODA_WINDOW_S": f"{spec.agent_window_s:g}",
        "CODA_SETTLE_S": f"{SETTLE_SHARE * spec.agent_window_s:g}",
        "CODA_CONTENTION_WINDOW_S": f"{min(MOST_ROUND_S, spec.agent_window_s / SAMPLES_PER_WINDOW):g}",
        STATE_VARIABLE: str(places.nvml_state),
        **(_sharing_environ(places) if spec.seats else {}),
    }


def _sharing_environ(places: MachinePlaces) -> dict[str, str]:
    """For an agent that shares GPUs. Its paths are short, because sockets are there.

    No kubelet looks for its seats: the simulated one offers them by itself. Which pod a process is of that speaks to
    the agent, a test says in `proc`."""
    return {
        "CODA_PROC": f"{places.node}/proc",
        "CODA_SHARING": "true",
        "CODA_SHARING_SOCKET": f"{places.node}/agent/agent.sock",
        "CODA_SHARING_FRAMEWORK": f"{places.node}/framework",
        "CODA_DEVICE_PLUGINS": f"{places.node}/plugins",
    }
