"""`coda top`: nodes, arrays and throttles, again and again."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coda.wording import counted
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.output import ContextOption, KubeconfigOption, SheetOutput, print_for_programs
from coda_cli.permitted import PermittedLists, kept, print_notes
from coda_cli.top.cluster_use import (
    ClusterUse,
    NodeUse,
    Throttle,
    cluster_use,
    job_of_array,
    throttles_of,
    unused_node,
    with_short_names,
)
from coda_cli.trace_options import positive
from coda_kube.api.client import Client, NotServed, Rejected, connect
from coda_kube.api.credentials import current_namespace, users_kubeconfig
from coda_kube.objects.names import API_VERSION
from coda_kube.objects.read import pod_from_json

LIVE_PODS: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


def top_command(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once; so do json, yaml, and output to no terminal.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks; at least as long as one takes.")] = 2.0,
    output: Annotated[SheetOutput, typer.Option("--output", "-o", help="How it is written.")] = SheetOutput.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show who uses the nodes' GPUs and cores, and what is throttled, until Ctrl-C.

    A terminal shows as many nodes and throttles as it has lines for: nodes with throttles and the fullest first."""
    errors = Console(stderr=True)
    with one_sentence(errors):
        positive("--every", every)
        console = result_console()
        is_live = console.is_terminal and not once and output in (SheetOutput.TABLE, SheetOutput.WIDE)
        if is_live:
            asyncio.run(follow(kubeconfig, context, console, every))
            return
        use, notes = asyncio.run(_read(kubeconfig, context))
    print_notes(errors, notes)
    if not print_for_programs(use.as_json(), output):
        console.print(drawn(use))


async def _read(kubeconfig: Path | None, context: str | None) -> tuple[ClusterUse, tuple[str, ...]]:
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0, context=context)
    try:
        return await read_use(client, current_namespace(kubeconfig, context))
    finally:
        await client.close()


async def follow(kubeconfig: Path | None, context: str | None, console: Console, every_s: float) -> None:
    """Show it on a terminal again and again, until cancelled. It is read at most half of the time."""
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0, context=context)
    own = current_namespace(kubeconfig, context)
    try:
        use, notes, took_s = await _timed_use(client, own)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(fitted(use, console, notes), refresh=True)
                await asyncio.sleep(max(every_s, took_s))  # else a large cluster would be read all the time
                use, notes, took_s = await _timed_use(client, own)
    finally:
        await client.close()


async def _timed_use(client: Client, own: str) -> tuple[ClusterUse, tuple[str, ...], float]:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    use, notes = await read_use(client, own)
    return use, notes, clock() - began_s


async def read_use(client: Client, instead: str = "") -> tuple[ClusterUse, tuple[str, ...]]:
    """Return how the cluster is used now, and sentences about what this user may not read of it.

    `instead`: the namespace whose jobs and pods are read if those of all are refused. Raises InvalidInput where Coda is
    not installed."""
    lists = PermittedLists(client, instead=instead)
    jobs = await lists.training_jobs(job_of_array)
    nodes = await lists.nodes(unused_node)
    pods = await lists.core("pods", pod_from_json, LIVE_PODS)
    return cluster_use(nodes, pods, jobs, await _all_throttles(client)), lists.notes()


async def _all_throttles(client: Client) -> list[Throttle] | None:
    """Those of every NodeProfile; None if this user may not read these, as most users may not."""
    try:
        return [*chain.from_iterable(await kept(client, f"/apis/{API_VERSION}/nodeprofiles", throttles_of))]
    except NotServed:
        return []
    except Rejected:
        return None


class Rows(NamedTuple):
    """How many rows a terminal has lines for. Its tables have no lines to spare."""

    nodes: int
    throttles: int


def fitted(use: ClusterUse, console: Console, notes: Iterable[str] = ()) -> Group:
    """Return the tables with as many rows as the terminal has lines for, and at least one of each.

    Throttles get up to half of the rows, and all that the nodes leave. A row with a long name takes several lines."""
    use, notes = with_short_names(use), tuple(notes)
    nodes, throttles = len(use.nodes or ()), len(use.throttles or ())

    def of(rows: int) -> Group:
        limits = min(throttles, max(rows // 2, rows - nodes))
        return drawn(use, Rows(rows - limits, limits), notes)

    def is_too_long(rows: int) -> bool:
        return len(console.render_lines(of(rows), pad=False)) > console.height

    least = min(nodes, 1) + min(throttles, 1)
    most = max(least, min(nodes + throttles, console.height))
    if not is_too_long(most):
        return of(most)  # tried first: with all rows, two captions go
    return of(least + bisect_left(range(least + 1, most), True, key=is_too_long))


def drawn(use: ClusterUse, rows: Rows | None = None, notes: Iterable[str] = ()) -> Group:
    """Return the tables, with all rows unless told. `notes`: sentences below them."""
    parts: list[Table | Text | str] = [_arrays(use)]
    if use.nodes is not None:
        parts.append(_nodes(use.nodes, rows))
    if use.throttles is None:
        parts.append("Throttles are not shown: you may not read NodeProfiles.")
    elif use.throttles:
        parts.append(_throttles(use.throttles, rows))
    for part in parts:
        if isinstance(part, Table) and rows is not None:
            part.show_edge, part.collapse_padding = False, True
    return Group(*parts, *map(Text, notes))


def _arrays(use: ClusterUse) -> Table:
    table = Table(title="Arrays", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "pods", "GPUs", "cores", "borrowed", "waiting"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for array in use.arrays:
        cells = (f"{array.pods}", f"{array.gpus}", f"{array.cores:g}", f"{array.borrowed_cores:g}", f"{array.waiting}")
        table.add_row(array.name, *cells)
    if use.nodes is not None:
        gpus, cores = sum(node.gpus for node in use.nodes), sum(node.cores for node in use.nodes)
        table.caption = f"{len(use.nodes)} nodes have {gpus} GPUs and {cores:g} cores"
    return table


def _nodes(nodes: tuple[NodeUse, ...], rows: Rows | None) -> Table:
    table = Table(title="Nodes", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("node", overflow="fold")  # numbers are never cut: a long name takes several lines
    for column in ("GPUs", "cores", "GPU jobs", "CPU jobs", "borrowed", "others", "throttles"):
        table.add_column(column, justify="right", no_wrap=True, min_width=len(column))
    shown = nodes
    if rows is not None and len(shown) > rows.nodes:
        ordered = sorted(shown, key=lambda node: (-node.throttles, -node.used_gpus, -node.used_cores, node.name))
        shown = tuple(ordered[: rows.nodes])
        table.caption = f"and {counted(len(nodes) - rows.nodes, 'node')} more: coda top --once"
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


def _throttles(throttles: tuple[Throttle, ...], rows: Rows | None) -> Table:
    table = Table(title="Throttles", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("node", "pod", "what", "now", "before", "since"):
        table.add_column(column, overflow="fold")
    shown = throttles if rows is None else throttles[: rows.throttles]
    if len(shown) < len(throttles):
        table.caption = f"and {counted(len(throttles) - len(shown), 'throttle')} more: coda top --once"
    for one in shown:
        table.add_row(*map(Text, (one.node, one.pod, one.what, one.value, one.original, one.since)))
    return table
