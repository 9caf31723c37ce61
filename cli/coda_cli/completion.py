"""`coda completion`: the shell completes commands, options and their values; and kubectl those of `kubectl coda`."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Final

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]  # no __all__

_VARIABLE: Final = "_CODA_COMPLETE"
_NO_FILES: Final = ":4"  # kubectl's directive: what is printed is all, so do not offer files


class Shell(Enum):
    """The shells that a script can be printed for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the script that completes `coda` in a shell.

    For this session: `source <(coda completion bash)`, the same for zsh, or `coda completion fish | source`. For good:
    put that line into ~/.bashrc, ~/.zshrc (after compinit) or ~/.config/fish/config.fish."""
    print(get_completion_script(prog_name="coda", complete_var=_VARIABLE, shell=shell.value))


def make_ready() -> None:
    """Let this process answer a shell that asks for completions."""
    completion_init()


def words_so_far() -> list[str]:
    """Return the words after `coda` where bash asks what can follow the first; none where it does not.

    Other shells say their words otherwise: for them all commands are loaded, which is only slower."""
    words = os.environ.get("COMP_WORDS", "").split()[1:]
    return words if _VARIABLE in os.environ and len(words) > 1 else []


def answer_kubectl(words: Sequence[str], run: Callable[[], None]) -> None:
    """Print what can stand for the last word, one a line, and kubectl's directive. `run`: the command line."""
    os.environ |= {
        _VARIABLE: "complete_bash",
        "COMP_WORDS": shlex.join(["coda", *words]),
        "COMP_CWORD": str(len(words)),
    }
    with contextlib.suppress(SystemExit):
        run()
    print(_NO_FILES)
