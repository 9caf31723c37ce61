"""Cluster shapes by their text, `20x8x28,60x4x28`, or from a file of node groups."""

from __future__ import annotations

from pathlib import Path

from coda.errors import InvalidInput
from coda_sim.traces.fields import MAX_CPUS, MAX_GPUS, Bad, Fields, whole
from coda_sim.traces.text_lines import csv_columns, csv_records, numbered_lines, opened
from coda_sim.workload.gangs import NodeGroup, Shape, shape_from_groups, shape_from_text

_COLUMNS = ("nodes", "gpus_per_node", "cores_per_node")
_MEMORY = "memory_gib_per_node"
_MAX_NODES = 100_000
_MAX_MEMORY_GIB = 1_000_000


def shape_from_argument(text: str) -> Shape:
    """Groups as text, else `FILE` or `FILE:NAME`. Raises InvalidInput for what is neither.

    FILE is a CSV file with nodes, gpus_per_node, cores_per_node and, where memory is limited, memory_gib_per_node;
    NAME chooses lines by their column `shape`."""
    path, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    if not Path(path).is_file():
        return shape_from_text(text)
    return read_shape(Path(path), name)


def read_shape(path: Path, name: str = "") -> Shape:
    """The node groups of the file, of shape `name` where it holds several. A bad line of it refuses (InvalidInput)."""
    groups: dict[str, list[NodeGroup]] = {}
    with opened(path) as text:
        lines = numbered_lines(path, text)
        columns = csv_columns(path, next(lines, (0, ""))[1], _COLUMNS)
        for line, fields in csv_records(columns, lines):
            try:
                shape = _name(fields)
                if not name or shape == name:
                    groups.setdefault(shape, []).append(_group(fields))
            except Bad as problem:
                raise InvalidInput(f"{path}:{line}: {problem}") from None
    if name and not groups:
        raise InvalidInput(f"{path}: has no shape {name!r}")
    if len(groups) != 1:
        known = ", ".join(groups) or "none"
        raise InvalidInput(f"{path}: choose one of its shapes, as {path}:NAME; it has {known}")
    return shape_from_groups(next(iter(groups.values())))


def _name(fields: Fields | Bad) -> str:
    if isinstance(fields, Bad):
        raise fields
    return fields.get("shape", "") or ""


def _group(fields: Fields | Bad) -> NodeGroup:
    if isinstance(fields, Bad):
        raise fields
    return NodeGroup(
        nodes=whole(fields, "nodes", 1, _MAX_NODES),
        gpus=whole(fields, "gpus_per_node", 0, MAX_GPUS),
        cores=whole(fields, "cores_per_node", 1, MAX_CPUS),
        memory_gib=whole(fields, _MEMORY, 0, _MAX_MEMORY_GIB) if fields.get(_MEMORY) else 0,
    )
