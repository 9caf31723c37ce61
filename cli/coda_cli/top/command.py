"""`coda top`: nodes, arrays and throttles, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coda.errors import InvalidInput
from coda.wording import counted
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.output import KubeconfigOption, SheetOutput, print_for_programs
from coda_cli.top.cluster_use import ClusterUse, Throttle, cluster_use
from coda_cli.trace_options import positive
from coda_kube.api.client import Client, NotFound, Rejected, connect
from coda_kube.api.credentials import users_kubeconfig
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION

LIVE_PODS: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
SPARE_LINES: Final = 16  # of a terminal, for everything but the lines of nodes


def top_command(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once; so do json, yaml, and output to no terminal.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
    output: Annotated[SheetOutput, typer.Option("--output", "-o", help="How it is written.")] = SheetOutput.TABLE,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show who uses the nodes' GPUs and cores, and what is throttled, until Ctrl-C.

    A terminal shows as many nodes as it has lines for, those with throttles and the fullest first."""
    with one_sentence(Console(stderr=True)):
        positive("--every", every)
        console = result_console()
        is_live = console.is_terminal and not once and output in (SheetOutput.TABLE, SheetOutput.WIDE)
        asyncio.run(_top(kubeconfig, console, every if is_live else None, output))


async def _top(kubeconfig: Path | None, console: Console, every_s: float | None, output: SheetOutput) -> None:
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0)
    try:
        use = await read_use(client)
        if print_for_programs(use.as_json(), output):
            return
        if every_s is None:
            console.print(drawn(use))
        else:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(drawn(use, lines=max(1, console.height - SPARE_LINES)), refresh=True)
                    await asyncio.sleep(every_s)
                    use = await read_use(client)
    finally:
        await client.close()


async def read_use(client: Client) -> ClusterUse:
    """Return how the cluster is used now. Raises InvalidInput where Coda is not installed."""
    try:
        jobs = await client.list_pages(f"/apis/{API_VERSION}/trainingjobs")
    except NotFound as error:
        raise InvalidInput("this cluster has no TrainingJobs: install Coda first (docs/installing.md)") from error
    nodes = await client.list_pages("/api/v1/nodes")
    pods = await client.list_pages("/api/v1/pods", LIVE_PODS)
    return cluster_use(nodes["items"], pods["items"], jobs["items"], await _profiles(client))


async def _profiles(client: Client) -> list[Json] | None:
    """The NodeProfiles; None if this user may not read them, as most users may not."""
    try:
        return list((await client.list_pages(f"/apis/{API_VERSION}/nodeprofiles"))["items"])
    except NotFound:
        return []
    except Rejected:
        return None


def drawn(use: ClusterUse, *, lines: int | None = None) -> Group:
    """Return the tables. `lines`: of nodes, at most."""
    parts: list[Table | str] = [_arrays(use), _nodes(use, lines)]
    if use.throttles is None:
        parts.append("Throttles are not shown: you may not read NodeProfiles.")
    elif use.throttles:
        parts.append(_throttles(use.throttles))
    return Group(*parts)


def _arrays(use: ClusterUse) -> Table:
    table = Table(title="Arrays", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "pods", "GPUs", "cores", "borrowed", "waiting"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for array in use.arrays:
        cells = (f"{array.pods}", f"{array.gpus}", f"{array.cores:g}", f"{array.borrowed_cores:g}", f"{array.waiting}")
        table.add_row(array.name, *cells)
    gpus, cores = sum(node.gpus for node in use.nodes), sum(node.cores for node in use.nodes)
    table.caption = f"{len(use.nodes)} nodes have {gpus} GPUs and {cores:g} cores"
    return table


def _nodes(use: ClusterUse, lines: int | None) -> Table:
    table = Table(title="Nodes", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("node", overflow="fold")  # numbers are never cut: a long name takes several lines
    for column in ("GPUs", "cores", "GPU jobs", "CPU jobs", "borrowed", "others", "throttles"):
        table.add_column(column, justify="right", no_wrap=True, min_width=len(column))
    shown = use.nodes
    if lines is not None and len(shown) > lines:
        ordered = sorted(shown, key=lambda node: (-node.throttles, -node.used_gpus, -node.used_cores, node.name))
        shown = tuple(ordered[:lines])
        table.caption = f"and {counted(len(use.nodes) - lines, 'node')} more: coda top --once"
    for node in shown:
        table.add_row(
            Text(node.name if node.takes_pods else f"{node.name} (takes no pods)"),
            f"{node.used_gpus}/{node.gpus}",
            f"{node.used_cores:g}/{node.cores:g}",
            *(f"{cores:g}" for cores in (node.gpu_jobs_cores, node.cpu_jobs_cores, node.borrowed_cores)),
            f"{node.others_cores:g}",
            str(node.throttles or ""),
        )
    return table


def _throttles(throttles: Iterable[Throttle]) -> Table:
    table = Table(title="Throttles", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("node", "pod", "what", "now", "before", "since"):
        table.add_column(column, overflow="fold")
    for one in throttles:
        table.add_row(*map(Text, (one.node, one.pod, one.what, one.value, one.original, one.since)))
    return table
