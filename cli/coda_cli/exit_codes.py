"""How a command ends: where its results go, an exit code, and one sentence for what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import typer
from rich.console import Console

from coda.errors import CodaError, InvalidInput


@contextmanager
def one_sentence(console: Console) -> Iterator[None]:
    """Turn Coda's errors into a sentence and exit code 2 (bad input) or 1; Ctrl-C into 130."""
    try:
        yield
    except InvalidInput as error:
        _say(console, str(error))
        raise typer.Exit(2) from error
    except CodaError as error:
        _say(console, str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        _say(console, "interrupted")
        raise typer.Exit(130) from error


def result_console() -> Console:
    """Standard output; where it is no terminal, wide enough that tables do not fold every sentence."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def version() -> str:
    """Of the installed package; `unknown` when run from a checkout without one."""
    try:
        return metadata.version("coda")
    except metadata.PackageNotFoundError:
        return "unknown"


def _say(console: Console, sentence: str) -> None:
    console.print(f"coda: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
