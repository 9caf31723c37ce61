"""What users type and what they get: commands with their options, and the files of a simulation."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from coda_cli.__main__ import command_line
from tests.deploy.images import FOLDERS, instructions
from tests.surface.programs import joined
from tests.surface.sources import ROOT, Unknown, in_packages, value

TRACE = ROOT / "examples" / "traces" / "small.csv"
ONE_RUN = ("--policy", "coda")
FOUR_RUNS = ("--policy", "coda", "--policy", "fifo-skip", "--seed", "1", "--seed", "2")


def commands() -> set[str]:
    """Every command with its options, the options of the other programs, and what images and make start."""
    found = set(_command(typer.main.get_command(command_line()), "coda"))
    found |= {f"{module.package} takes {line}" for module in in_packages() for line in _arguments(module)}
    for folder in FOLDERS.values():
        lines = [line for line in instructions(folder) if line.startswith(("ENTRYPOINT ", "USER ", "ENV "))]
        found |= {f"image of {folder}: {line}" for line in lines}
    targets = re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    return found | {f"make {target}" for target in targets}


def _command(command: Any, path: str) -> Iterator[str]:
    yield path
    for parameter in command.params:
        yield f"{path} {_parameter(parameter)}"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(inner, f"{path} {name}")


def _parameter(parameter: Any) -> str:
    """All spellings, then type, limits and default; an argument by the name that the usage line has."""
    kind = parameter.type_descriptor.annotation
    choices = [each.value for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else None
    told = {
        "type": None if choices else str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind),
        "choices": choices,
        "default": parameter.default.value if isinstance(parameter.default, Enum) else parameter.default,
        "min": parameter.min,
        "max": parameter.max,
        "env": parameter.envvar,
    }
    marks = [mark for mark in ("required", "multiple", "hidden") if getattr(parameter, mark)]
    is_option = parameter.param_type_name == "option"
    spelled = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name]
    known = [f"{name}={part}" for name, part in told.items() if part is not None]
    return " ".join(["/".join(spelled), *known, *marks])


def _arguments(module: Any) -> Iterator[str]:
    """The options that programs without typer define."""
    for node in module.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
            words = {word.arg: word.value for word in node.keywords if word.arg in ("default", "action", "required")}
            names = [_literal(module, name) for name in node.args]
            yield " ".join([*names, *(f"{name}={_literal(module, part)}" for name, part in sorted(words.items()))])


def _literal(module: Any, node: ast.AST) -> str:
    try:
        return str(value(module, node))
    except Unknown:
        return "(computed)"


def simulation_files(folder: Path) -> set[str]:
    """What a simulation writes, the choices it offers, and the files that the commands write elsewhere."""
    found = {f"one run: {line}" for line in _files(folder / "one", ONE_RUN)}
    found |= {f"four runs: {line}" for line in _files(folder / "four", FOUR_RUNS)}
    found |= {f"choice {line}" for line in _choices()}
    return found | {f"file {name}" for name in joined("coda_cli")}


def _files(folder: Path, options: tuple[str, ...]) -> Iterator[str]:
    words = ["simulate", "--trace", str(TRACE), "--cluster", "4x8x48", *options, "--out", str(folder)]
    ended = CliRunner().invoke(command_line(), words)
    assert ended.exit_code == 0, ended.output
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file():
            yield name
        if path.suffix == ".json":
            yield from (f"{name} {line}" for line in _paths(json.loads(path.read_text(encoding="utf-8")), ""))
        if path.name.endswith(".csv.gz"):
            with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
                yield f"{name} {','.join(next(csv.reader(file)))}"


def _paths(part: Any, path: str) -> Iterator[str]:
    if isinstance(part, dict):
        for name, inner in part.items():
            yield from _paths(inner, f"{path}.{name}" if path else name)
    elif isinstance(part, list):
        yield f"{path}[]"
        for inner in part:
            yield from _paths(inner, f"{path}[]")
    else:
        yield path


def _choices() -> Iterator[str]:
    """The policies, their parts, and the profile sets, as refusals name them."""
    for option in ("--policy", "--without", "--profiles"):
        words = ["simulate", "--trace", str(TRACE), "--cluster", "4x8x48", option, "unheard-of"]
        ended = CliRunner().invoke(command_line(), words, env={"COLUMNS": "1000"})
        assert ended.exit_code == 2, ended.output
        named = re.split(r"choose (?:one )?of|parts are", " ".join(ended.stderr.split()))[1]
        yield from (f"{option} {each.removeprefix('or ')}" for each in named.strip().split(", "))
