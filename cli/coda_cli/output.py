"""How a result is written: as text for people, or as JSON or YAML for programs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

KubeconfigOption = Annotated[
    Path | None, typer.Option(help="The cluster to ask [default: KUBECONFIG, else ~/.kube/config].")
]

ContextOption = Annotated[str | None, typer.Option(help="A context of the kubeconfig [default: its current one].")]


class TableOutput(Enum):
    """The forms of a table. `wide`: no line is folded, and there are more columns."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class TextOutput(Enum):
    """The forms of sentences."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


class SheetOutput(Enum):
    """The forms of tables that have nothing to add when there is more space: `wide` is the table itself."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


TextOption = Annotated[TextOutput, typer.Option("--output", "-o", help="How it is written.")]


def printable(text: str) -> str:
    """Return text that others wrote so that a terminal obeys none of it; white space becomes a space.

    Names of users, messages of Events and lines of logs may hold anything."""
    if text.isprintable():
        return text
    shown = [
        character if character.isprintable() else " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
        for character in text
    ]
    return "".join(shown)


def print_for_programs(content: Any, output: Enum) -> bool:
    """Print `content`, which JSON can hold, as JSON or YAML. False if `output` is a form for people."""
    if output.value == "json":
        print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())
    elif output.value == "yaml":
        import yaml  # takes time that no other command should wait for

        print(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), end="")
    else:
        return False
    return True
