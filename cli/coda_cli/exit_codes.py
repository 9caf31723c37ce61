"""How a command ends: its exit code, and one sentence for what went wrong; and the console for its results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console

from coda.errors import CodaError, InvalidInput, Outage
from coda_kube.api.client import Rejected

EXIT_CODES: Final = {
    0: "done, and nothing is bad",
    1: "failed, or something is bad: `check` found a breach, `doctor` something to mend, `local status` a dead part",
    2: "wrong usage or bad input; `check` and `doctor`: the cluster does not answer, so nothing was looked at",
    130: "interrupted by Ctrl-C or SIGTERM",
}
"""What the exit code of every command means. `coda --help` ends with it."""


@contextmanager
def one_sentence(console: Console, *, failed: int = 1) -> Iterator[None]:
    """Turn Coda's errors into a sentence and exit code 2 (bad input) or `failed`; Ctrl-C into 130."""
    try:
        yield
    except InvalidInput as error:
        _say(console, str(error))
        raise typer.Exit(2) from error
    except CodaError as error:
        _say(console, _explained(error))
        raise typer.Exit(failed) from error
    except KeyboardInterrupt as error:
        _say(console, "interrupted")
        raise typer.Exit(130) from error


def _explained(error: CodaError) -> str:
    """The sentence of an error, with whose it is where it does not say so itself."""
    if isinstance(error, Rejected):
        return f"the cluster refuses this: {error}"
    if isinstance(error, Outage):
        return f"the cluster does not answer: {error}"
    return str(error)


def result_console() -> Console:
    """Return standard output as a console: 140 columns wide where it is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def _say(console: Console, sentence: str) -> None:
    console.print(f"coda: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
