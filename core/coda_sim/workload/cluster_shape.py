"""The shape of a simulated cluster: groups of equal nodes, from a text such as `20x8x28,60x4x28` or from a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coda.errors import InvalidInput
from coda_sim.traces.fields import MAX_CPUS, MAX_GPUS, Bad, Fields, whole
from coda_sim.traces.text_lines import csv_columns, csv_records, numbered_lines, opened

GIB = 1 << 30


_GROUP = re.compile(r"(\d{1,6})x(\d{1,6})x(\d{1,6})(?:x(\d{1,6}))?", re.ASCII)
_FRACTION = re.compile(r"[\d.]+(x[\d.]+){2,3}(,\s*[\d.]+(x[\d.]+){2,3})*")


_COLUMNS = ("nodes", "gpus_per_node", "cores_per_node")


_MEMORY = "memory_gib_per_node"


_MAX_NODES = 100_000


_MAX_MEMORY_GIB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """A group of `nodes` equal nodes."""

    nodes: int
    gpus: int  # per node
    cores: int  # per node
    memory_gib: int = 0  # per node; 0: no limit

    def ranks(self, gpus: int, cores: int, memory_bytes: int) -> int:
        """Return how many ranks of this size one empty node holds; a rank without GPUs still needs a core."""
        counts = [self.cores // cores]
        if gpus:
            counts.append(self.gpus // gpus)
        if memory_bytes and self.memory_gib:
            counts.append(self.memory_gib * GIB // memory_bytes)
        return min(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """The shape of a cluster: its groups of equal nodes, and the number of racks.

    The nodes are spread over the racks in order, as equally as possible."""

    groups: tuple[NodeGroup, ...]
    racks: int = 1

    def __str__(self) -> str:
        return ",".join(
            f"{group.nodes}x{group.gpus}x{group.cores}" + (f"x{group.memory_gib}" if group.memory_gib else "")
            for group in self.groups
        )

    @property
    def gpus(self) -> int:
        """The GPUs of the whole cluster."""
        return sum(group.nodes * group.gpus for group in self.groups)

    @property
    def limits_memory(self) -> bool:
        """True if the memory of its nodes is limited."""
        return any(group.memory_gib for group in self.groups)

    def ranks(self, gpus: int, cores: int, memory_bytes: int = 0) -> int:
        """Return how many ranks of this size the empty cluster holds together."""
        return sum(group.nodes * group.ranks(gpus, cores, memory_bytes) for group in self.groups)

    @property
    def largest(self) -> NodeGroup:
        """The group of the largest node: most GPUs, then most cores."""
        return max(self.groups, key=lambda group: (group.gpus, group.cores))


def shape_from_text(text: str) -> ClusterShape:
    """Return the shape `20x8x28,60x4x28` (nodes x GPUs x cores, x GiB if memory is limited). Raises InvalidInput."""
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        nodes, gpus, cores, memory_gib = (int(number or 0) for number in match.groups()) if match else (0, 0, 0, 0)
        if not nodes or not cores:
            raise InvalidInput(f"{part.strip()!r} is no group of nodes: write NODESxGPUSxCORES, as 12x8x48")
        groups.append(NodeGroup(nodes=nodes, gpus=gpus, cores=cores, memory_gib=memory_gib))
    return shape_from_groups(groups)


def shape_from_groups(groups: Sequence[NodeGroup]) -> ClusterShape:
    """Return the shape of these groups.

    Raises InvalidInput for too many nodes, or if only some groups have a limited memory."""
    shape = ClusterShape(groups=tuple(groups))
    nodes = sum(group.nodes for group in groups)
    if nodes > _MAX_NODES:
        raise InvalidInput(f"a cluster of {nodes} nodes is too large: at most {_MAX_NODES} are possible")
    if shape.limits_memory and not all(group.memory_gib for group in groups):
        raise InvalidInput(f"{shape}: either all groups of nodes have a memory (NODESxGPUSxCORESxGIB), or none has")
    return shape


def shape_from_argument(text: str) -> ClusterShape:
    """Return the shape from groups as text, or from `FILE` or `FILE:NAME`. Raises InvalidInput for other texts.

    FILE is a CSV file with nodes, gpus_per_node, cores_per_node and, if memory is limited, memory_gib_per_node;
    NAME selects lines by their column `shape`."""
    path, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    if not Path(path).is_file():
        if "." in text and _FRACTION.fullmatch(text):
            raise InvalidInput(f"{text!r} has a fraction: nodes, GPUs, cores and GiB are whole numbers, as 12x8x48x512")
        if "." in path or "/" in path:  # no group of nodes has these
            raise InvalidInput(f"{path}: there is no such file of node groups; without one write them, as 12x8x48")
        return shape_from_text(text)
    return read_shape(Path(path), name)


def read_shape(path: Path, name: str = "") -> ClusterShape:
    """Return the shape in the file; `name`: which one, if it has several. Raises InvalidInput for any bad line."""
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
