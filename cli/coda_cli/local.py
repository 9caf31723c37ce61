"""`coda local`: a control plane on this machine, with simulated nodes and Coda."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coda.errors import InvalidInput
from coda_cli.output import SheetOutput, print_for_programs
from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.local import named_clusters
from coda_lab.local.named_clusters import PartHealth
from coda_lab.local.supervisor import ClusterState
from coda_lab.spec import REAL_NODE_CORES, ClusterSpec, Layout

app = typer.Typer(
    help="Run a control plane on this machine, with simulated nodes. It needs a clone of the repository.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Option(help="Name of the control plane; several can be up under different names.")]
Nodes = Annotated[str, typer.Option(help="Simulated nodes, NODESxGPUSxCORES, as 8x8x48,4x4x28.")]
Racks = Annotated[int, typer.Option(min=1, help="Number of racks to spread the nodes over.")]

_console = Console(highlight=False)


@app.command()
def up(
    nodes: Nodes = "8x8x48",
    racks: Racks = 2,
    name: Name = "default",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API server; 0 takes a free one.")] = 0,
    coda: Annotated[bool, typer.Option(help="Start Coda, or only a plain control plane.")] = True,
    real_node: Annotated[
        bool, typer.Option("--real-node", help="Add a node with a real kubelet, in a virtual machine (`make node`).")
    ] = False,
    agents: Annotated[
        str,
        typer.Option(help="Start agents for this many of the simulated nodes, or `all`; each on an emulated machine."),
    ] = "0",
    window: Annotated[
        float, typer.Option(help="Seconds of one tuning measurement of these agents; real agents take 90.")
    ] = 10.0,
) -> None:
    """Start a control plane, and return when it is ready. It needs a clone of the repository."""
    cores = REAL_NODE_CORES if real_node else 0
    spec = ClusterSpec(nodes=nodes, racks=racks, coda=coda, api_port=port, real_node_cores=cores)
    spec = replace(spec, agents=_agents(agents, spec.node_count), agent_window_s=window)
    try:
        state = named_clusters.up(name, spec, Settings.from_environ(), lambda step: _console.print(step, markup=False))
    except KeyboardInterrupt:
        _console.print("Interrupted: nothing is left behind.")
        raise
    _print_access(state)
    suffix = "" if name == "default" else f" --name {name}"
    _console.print(f"`coda local status{suffix}` shows its parts, `coda local down{suffix}` ends it.", soft_wrap=True)


@app.command()
def status(
    name: Name = "default",
    output: Annotated[SheetOutput, typer.Option("--output", "-o", help="How it is written.")] = SheetOutput.TABLE,
) -> None:
    """Show the parts and how to reach them.

    Exit code 0: all are ready; 1: at least one is not."""
    state = _state(name)
    parts = asyncio.run(named_clusters.health(state))
    if not print_for_programs(_status_json(state, parts), output):
        _print_status(state, parts)
    if not all(health.ready for health in parts):
        raise typer.Exit(1)


def _status_json(state: ClusterState, parts: Sequence[PartHealth]) -> dict[str, Any]:
    layout = Layout(folder=state.folder)
    return {
        "server": state.server,
        "kubectl": str(state.kubectl),
        "kubeconfigs": {account: str(layout.kubeconfig(account)) for account in ("admin", "user")},
        "parts": [
            {
                "name": health.part.name,
                "pid": health.part.process.pid if health.alive and health.part.process else None,
                "port": health.part.port,
                "alive": health.alive,
                "ready": health.ready,
                "uptimeSeconds": round(time.time() - health.part.started_s) if health.alive else None,
                "restarts": health.part.restarts,
            }
            for health in parts
        ],
    }


def _print_status(state: ClusterState, parts: Iterable[PartHealth]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("part", "pid", "port", "ready", "uptime", "restarts"):
        table.add_column(column, justify="left" if column in ("part", "ready") else "right", no_wrap=True)
    for health in parts:
        table.add_row(*_row(health))
    _console.print(table)
    _print_access(state)


@app.command()
def env(name: Name = "default") -> None:
    """Print what lets this shell use it: eval "$(coda local env)"."""
    state = _state(name)
    kubeconfig, programs = Layout(folder=state.folder).kubeconfig("admin"), Path(state.kubectl).parent
    print(f"export KUBECONFIG={shlex.quote(str(kubeconfig))}")
    print(f'export PATH={shlex.quote(str(programs))}:"$PATH"')


@app.command()
def down(name: Name = "default") -> None:
    """End a control plane, and remove everything it left."""
    if named_clusters.down(name, Settings.from_environ()):
        _console.print(f"The local control plane {name!r} is down; nothing of it is left.")
    else:
        _console.print(f"There is no local control plane {name!r}.")


@app.command()
def logs(
    part: Annotated[
        str, typer.Argument(metavar="PART", help="A part that `coda local status` names, or `supervisor`.")
    ],
    name: Name = "default",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Number of lines from the end.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing as the log grows.")] = False,
) -> None:
    """Print the log of a part."""
    state = _state(name)
    known = ["supervisor", *(each.name for each in state.parts)]
    if part not in known:
        raise LabFailure(f"No part {part!r}; there are {', '.join(known)}.")
    log = Layout(folder=state.folder).log(part)
    command = ["tail", "-n", str(lines), *(["-F"] if follow else []), str(log)]
    os.execvp(command[0], command)  # noqa: S606 - becomes tail: no shell in between


def _agents(text: str, nodes: int) -> int:
    if text != "all" and not (text.isascii() and text.isdigit()):
        raise InvalidInput(f"--agents {text!r}: give a number, or all")
    return nodes if text == "all" else int(text)


def _state(name: str) -> ClusterState:
    settings = Settings.from_environ()
    state = named_clusters.read_state(named_clusters.folder_of(name, settings))
    if state is None:
        raise LabFailure(f"No local control plane {name!r} is up: start one with `coda local up`.")
    return state


def _row(health: PartHealth) -> tuple[str, ...]:
    part = health.part
    uptime = _duration(time.time() - part.started_s) if health.alive else "-"
    pid = str(part.process.pid) if health.alive and part.process else "-"
    ready = "yes" if health.ready else ("no" if health.alive else "ended")
    return (part.name, pid, str(part.port), ready, uptime, str(part.restarts))


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest_s:02}s" if minutes else f"{rest_s}s"


def _print_access(state: ClusterState) -> None:
    layout = Layout(folder=state.folder)
    rows = (
        ("API server", state.server),
        ("kubectl", str(state.kubectl)),
        ("administrator", f"export KUBECONFIG={layout.kubeconfig('admin')}"),
        ("plain user", f"export KUBECONFIG={layout.kubeconfig('user')}"),
        ("logs", str(layout.log("PART"))),
    )
    for title, value in rows:
        _console.print(f"{title:14} {value}", soft_wrap=True, markup=False)
