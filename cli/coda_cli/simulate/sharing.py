"""`coda simulate --sharing`: policies for jobs that share GPUs, on their own workloads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from coda.errors import InvalidInput
from coda.sharing.policies import SharingPart
from coda_cli.out_files import make_folder, write_whole
from coda_kube.api.installed_version import installed_version
from coda_sim.sharing.studies import GPU_TRACE, check_sharing, policies_of, run_sharing

_OPTIONS = frozenset({"sharing", "workload", "without", "seed", "out"})


def refuse_other_options(context: typer.Context) -> None:
    """Raise InvalidInput if an option is given that would have no effect beside --sharing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _OPTIONS and source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise InvalidInput(f"{option} has no effect with --sharing: leave it out (docs/gpu-sharing.md)")


def simulate_sharing(
    names: Sequence[str],
    workload: str | None,
    without: Sequence[str],
    seeds: Sequence[int],
    out: Path | None,
    result: Console,
) -> None:
    """Run every policy on every seed, print a table, and write `summary.json`. Raises InvalidInput, nothing was run."""
    workload = GPU_TRACE if workload is None else workload
    policies = policies_of(workload) if "all" in names else tuple(dict.fromkeys(names))
    parts = [_part(text) for text in dict.fromkeys(without)]
    for policy in policies:
        check_sharing(workload, policy, parts)
    if out is not None:
        make_folder(out, "summary.json")
    runs: list[dict[str, Any]] = [
        {"policy": policy, "seed": seed, "metrics": run_sharing(workload, policy, parts, seed)}
        for policy in policies
        for seed in dict.fromkeys(seeds)
    ]
    measures = list(runs[0]["metrics"])
    table = Table("sharing", "seed", *measures)
    for run in runs:
        table.add_row(run["policy"], str(run["seed"]), *(_text(run["metrics"][name]) for name in measures))
    try:
        if out is not None:
            head = {"schema": 1, "version": installed_version(), "command": "simulate --sharing", "workload": workload}
            content = {**head, "without": [part.value for part in parts], "runs": runs}
            written = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            write_whole(out / "summary.json", written)
    finally:  # neither a full disk nor a reader of stdout who left takes both
        result.print(table)


def _part(text: str) -> SharingPart:
    try:
        return SharingPart(text)
    except ValueError:
        names = ", ".join(part.value for part in SharingPart)
        raise InvalidInput(f"--without {text}: with --sharing the parts are {names}") from None


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3f}"
