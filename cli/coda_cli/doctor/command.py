"""`coda doctor`: one line for each thing that is looked at, with the fix."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import typer
from rich.console import Console

from coda_cli.doctor.finding import Finding, Level
from coda_cli.doctor.findings import findings
from coda_cli.doctor.seen import Seen, look
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.output import ContextOption, KubeconfigOption, TextOption, TextOutput, print_for_programs
from coda_kube.api.client import connect
from coda_kube.api.credentials import users_kubeconfig

_STYLES: Final = {Level.GOOD: "green", Level.NOTE: "yellow", Level.BAD: "red", Level.UNKNOWN: "yellow"}


def doctor_command(
    output: TextOption = TextOutput.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Say whether this cluster is fit for Coda, and whether Coda is well in it.

    It only reads. Exit code 0: nothing is bad; 1: something is; 2: the cluster does not answer."""
    with one_sentence(Console(stderr=True), failed=2):
        found = [*findings(asyncio.run(_look(kubeconfig, context)))]
    if not print_for_programs([_json(one) for one in found], output):
        show(found, result_console())
    if any(one.level is Level.BAD for one in found):
        raise typer.Exit(1)


async def _look(kubeconfig: Path | None, context: str | None) -> Seen:
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0, context=context)
    try:
        return await look(client)
    finally:
        await client.close()


def show(found: Iterable[Finding], console: Console) -> None:
    """Print a line for each finding, and one for its fix."""
    for one in found:
        console.print(f"{one.level.value:4} ", style=_STYLES[one.level], end="", markup=False, highlight=False)
        console.print(f"{one.about}: {one.says}", markup=False, highlight=False, soft_wrap=True)
        if one.fix:
            console.print(f"     -> {one.fix}", markup=False, highlight=False, soft_wrap=True)


def _json(one: Finding) -> dict[str, str]:
    return {"level": one.level.value, "about": one.about, "says": one.says, "fix": one.fix}
