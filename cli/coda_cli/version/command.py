"""`coda version`: a line for each part, and one for each thing that does not go together."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.output import ContextOption, KubeconfigOption, SheetOutput, print_for_programs
from coda_cli.version.parts import CLIENT, Part, parts_of, skews
from coda_kube.api.client import connect
from coda_kube.api.credentials import users_kubeconfig
from coda_kube.api.installed_version import installed_version


def version_command(
    client: Annotated[bool, typer.Option("--client", help="Only this command's; no cluster is asked.")] = False,
    output: Annotated[SheetOutput, typer.Option("--output", "-o", help="How it is written.")] = SheetOutput.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the version of every part, and which of them do not go together."""
    with one_sentence(Console(stderr=True)):
        parts = (
            [Part(CLIENT, installed_version(), "this command")] if client else asyncio.run(_read(kubeconfig, context))
        )
    said = [*skews(parts)]
    if print_for_programs({"parts": [asdict(part) for part in parts], "skews": said}, output):
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("part", "version", ""):
        table.add_column(column)
    for part in parts:
        table.add_row(*map(Text, (part.name, part.version or "-", part.note)))
    console = result_console()
    console.print(table)
    for sentence in said:
        console.print(f"note: {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)


async def _read(kubeconfig: Path | None, context: str | None) -> list[Part]:
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0, context=context)
    try:
        return await parts_of(client)
    finally:
        await client.close()
