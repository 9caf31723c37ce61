"""Nodes on which the jobs of several users fail with their GPUs: Coda places nothing there for a while.

Users write the logs that this rests on, and two of them may agree to lie. So it takes two users, only failures of the
GPU itself count, a small part of the pool is taken at once, and it ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coda.diagnosis import Reason

USERS: Final = 2
"""Source: the issue. One user's program may always fail in the same way."""
WINDOW_S: Final = 6 * 3600.0
"""How long a failure is remembered against its node. Our choice."""
CORDON_S: Final = 3600.0
"""Without a further failure the node is tried again after this: one more cordons it at once. Our choice."""
SHARE: Final = 0.1
"""Of the pool's nodes that are cordoned at once, at least one. Our choice: so much capacity lies may cost."""
MOST_NODES: Final = 64
"""However large the pool is: every job that waits has the names in its status. Our choice."""
OF_THE_GPU: Final = frozenset({Reason.CUDA.value, Reason.CUDA_INIT.value, Reason.ECC.value})
"""Failures of one node's GPUs. Lost peers and networks are not: there another node may be at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A job that failed on a node by what is not its fault. `owner`: whom it counts for."""

    uid: str
    owner: str
    node: str
    reason: str
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A node on which nothing is placed. `since_s`: when the second user failed there."""

    node: str
    reason: str
    users: int
    since_s: float
    until_s: float


def suspect_nodes(
    failures: Iterable[NodeFailure], cleared_s: Mapping[str, float], nodes: int, now_s: float, share: float = SHARE
) -> tuple[Cordon, ...]:
    """Return the cordons in force, the oldest first; what exceeds the share waits. `nodes`: of the pool.

    `cleared_s`: since when an administrator trusts a node again. Ties go by name. O(failures log failures)."""
    found: dict[tuple[str, str], list[NodeFailure]] = {}
    for failure in failures:
        if now_s - WINDOW_S < failure.time_s and failure.time_s > cleared_s.get(failure.node, 0.0):
            found.setdefault((failure.node, failure.reason), []).append(failure)
    by_node: dict[str, Cordon] = {}
    for (node, _), group in sorted(found.items()):
        cordon = _cordon_of(group)
        if cordon is not None and cordon.until_s > now_s:
            known = by_node.get(node)
            by_node[node] = cordon if known is None or cordon.until_s > known.until_s else known
    oldest = sorted(by_node.values(), key=lambda cordon: (cordon.since_s, cordon.node))
    return tuple(oldest[: most_cordons(nodes, share)])


def ended_cordons(failures: Iterable[NodeFailure], cleared_s: Mapping[str, float]) -> Mapping[str, frozenset[float]]:
    """Return, by node, until when cordons would have lasted that an administrator has ended. O(failures)."""
    last_s: dict[tuple[str, str], float] = {}
    for one in failures:
        if one.time_s <= cleared_s.get(one.node, 0.0):
            key = one.node, one.reason
            last_s[key] = max(last_s.get(key, 0.0), one.time_s)
    ended: dict[str, frozenset[float]] = {}
    for (node, _), time_s in last_s.items():
        ended[node] = ended.get(node, frozenset()) | {time_s + CORDON_S}
    return ended


def most_cordons(nodes: int, share: float = SHARE) -> int:
    """Return how many nodes of a pool may be cordoned at once: at least one, but never the only node."""
    return min(MOST_NODES, max(1, int(nodes * share))) if nodes > 1 and share > 0 else 0


def _cordon_of(group: Iterable[NodeFailure]) -> Cordon | None:
    """Return the cordon that failures of one reason on one node ask for; None if they are one user's."""
    ordered = sorted(group, key=lambda failure: (failure.time_s, failure.uid))
    owners: list[str] = []
    since_s = 0.0
    for failure in ordered:
        if failure.owner not in owners:
            owners.append(failure.owner)
            since_s = failure.time_s if len(owners) == USERS else since_s
    if len(owners) < USERS:
        return None
    last = ordered[-1]
    return Cordon(
        node=last.node, reason=last.reason, users=len(owners), since_s=since_s, until_s=last.time_s + CORDON_S
    )
