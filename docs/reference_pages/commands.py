"""The page of the command line: the help of every command, as the command prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.testing import CliRunner

from coda_cli.__main__ import command_line
from coda_cli.exit_codes import EXIT_CODES
from docs.reference_pages.markdown import cell, table

HEAD: Final = """# Commands

`kubectl coda` is the same program: kubectl finds it as `kubectl-coda`, and its shell completion as
`kubectl_complete-coda`. For completion of `coda` in bash: `source <(coda completion bash)`.

Commands that read a cluster use your kubeconfig; `--context` names another context of it. `-o json`
and `-o yaml` are for programs. Colours are for terminals, and `NO_COLOR=1` turns them off.

## Exit codes

"""


def commands_page() -> str:
    """Return the page."""
    codes = table(("code", "meaning"), ((str(code), cell(meaning)) for code, meaning in EXIT_CODES.items()))
    return HEAD + codes + "".join(_section(path) for path in _paths(typer.main.get_command(command_line()), ()))


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _paths(inner, (*path, name))


def _section(path: tuple[str, ...]) -> str:
    help_text = (
        CliRunner()
        .invoke(command_line(), [*path, "--help"], prog_name="coda", env={"COLUMNS": "100", "TERM": "dumb"})
        .output
    )
    plain = re.sub(r"[ \t]+$", "", help_text.strip(), flags=re.MULTILINE)
    return f"\n## {' '.join(('coda', *path))}\n\n```text\n{plain}\n```\n"
