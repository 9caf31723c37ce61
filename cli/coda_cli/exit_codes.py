"""How a command ends: its exit code, and one sentence for what went wrong; and the console for its results."""

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
    """Return standard output as a console: 140 columns wide where it is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def version() -> str:
    """Return the version of the installed package, or `unknown` in a checkout without one."""
    try:
        return metadata.version("coda")
    except metadata.PackageNotFoundError:
        return "unknown"


def _say(console: Console, sentence: str) -> None:
    console.print(f"coda: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
