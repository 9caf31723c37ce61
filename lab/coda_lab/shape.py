"""How many simulated nodes of which size: the syntax of `--nodes`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coda.errors import InvalidInput

_GROUP = re.compile(r"^(\d{1,4})x(\d{1,3})x(\d{1,4})$")
MOST_NODES = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` equal nodes of `gpus` GPUs and `cores` cores each."""

    count: int
    gpus: int
    cores: int


def groups_from_text(text: str) -> tuple[NodeGroup, ...]:
    """`8x8x48,4x4x28`: 8 nodes of 8 GPUs and 48 cores, 4 of 4 and 28. Raises InvalidInput."""
    groups: list[NodeGroup] = []
    for word in text.split(","):
        match = _GROUP.match(word.strip())
        if match is None:
            raise InvalidInput(
                f"--nodes {text}: {word.strip()!r} is not NODESxGPUSxCORES, such as 8x8x48 (more, after commas)."
            )
        count, gpus, cores = map(int, match.groups())
        if count < 1 or cores < 1:
            raise InvalidInput(f"--nodes {text}: {word.strip()!r} needs at least one node and one core.")
        groups.append(NodeGroup(count=count, gpus=gpus, cores=cores))
    if node_count(tuple(groups)) > MOST_NODES:
        raise InvalidInput(f"--nodes {text}: {node_count(tuple(groups))} nodes; at most {MOST_NODES} can be simulated.")
    return tuple(groups)


def node_count(groups: tuple[NodeGroup, ...]) -> int:
    """Nodes of all groups."""
    return sum(group.count for group in groups)
