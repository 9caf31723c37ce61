"""How much memory a rank asks for after it was killed for memory: more, within what its user, node and quotas allow.

Only the kubelet's word counts, not a log's. Peers let users write the same: HTCondor's `retry_request_memory`, Toil's
`--doubleMem`, Nextflow's `memory = { 2.GB * task.attempt }`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coda.wording import bytes_text

GROWTH: Final = (3, 2)
"""Half as much again with each attempt. Our choice: three retries more than triple it; twice as much idles more."""
LEAST_GROWTH_BYTES: Final = 64 << 20  # less more memory than that would fail the same way (our choice)
NODE_SHARE: Final = (19, 20)
"""Of a node's allocatable memory. Our choice: DaemonSets run beside a rank, and it must not wait for ever."""
_MIB: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What the main container of each rank asks for from some attempt on, in bytes; 0: it says nothing."""

    request_bytes: int = 0
    limit_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRoom:
    """What a ResourceQuota allows for one rank of the gang, in bytes, were the namespace empty."""

    name: str
    is_of_limits: bool  # it counts limits; else requests
    rank_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledRank:
    """A rank that its kubelet killed for memory: what it asked for, and what bounds it. Amounts in bytes.

    `others`: what the other containers of the pod ask for. `node_bytes`: allocatable on its node, 0 if unknown.
    `refusal`: why the API server refuses a rank with more; "": it does not."""

    rank: int
    main: RankMemory
    others: RankMemory = RankMemory()
    most_bytes: int = 0  # `spec.growMemoryTo`; 0: the job does not allow it
    node: str = ""
    node_bytes: int = 0
    quotas: tuple[QuotaRoom, ...] = ()
    refusal: str = ""


def grown_memory(killed: KilledRank) -> RankMemory | None:
    """Return what the next attempt asks for; None if it would not be enough more. O(quotas)."""
    base = killed.main.limit_bytes or killed.main.request_bytes
    if not killed.most_bytes or not base or killed.refusal:
        return None
    most_bytes = min(limit for limit, _ in _bounds(killed))
    wanted = min(base * GROWTH[0] // GROWTH[1], most_bytes) >> _MIB << _MIB
    if wanted - base < LEAST_GROWTH_BYTES:
        return None
    request = killed.main.request_bytes * wanted // base
    return RankMemory(request_bytes=request, limit_bytes=wanted if killed.main.limit_bytes else 0)


def growth_text(killed: KilledRank, grown: RankMemory | None) -> str:
    """Say in a clause what follows; "" for a job that does not allow it."""
    base = killed.main.limit_bytes or killed.main.request_bytes
    if not killed.most_bytes:
        return ""
    if grown is not None:
        asked = grown.limit_bytes or grown.request_bytes
        return f"it is tried again with {bytes_text(asked)} of memory per rank instead of {bytes_text(base)}"
    if not base:
        return "its memory cannot grow: the main container asks for none"
    if killed.refusal:
        return f"its memory cannot grow: {killed.refusal}"
    _, why = min(_bounds(killed))
    return f"its memory cannot grow beyond {bytes_text(base)}: {why}"


def _bounds(killed: KilledRank) -> list[tuple[int, str]]:
    """Return the most that may be asked for, by each bound, in terms of what is grown: the limit if there is one."""
    request, limit = killed.main.request_bytes, killed.main.limit_bytes
    bounds = [(killed.most_bytes, f"spec.growMemoryTo is {bytes_text(killed.most_bytes)}")]
    if killed.node_bytes:
        whole = killed.node_bytes * NODE_SHARE[0] // NODE_SHARE[1] - killed.others.request_bytes
        bounds.append((whole, f"node {killed.node} has {bytes_text(killed.node_bytes)}"))
    for quota in killed.quotas:
        others = killed.others.limit_bytes if quota.is_of_limits else killed.others.request_bytes
        left = quota.rank_bytes - others
        if not quota.is_of_limits and limit and request:
            left = left * limit // request
        bounds.append((left, f"ResourceQuota {quota.name} allows {bytes_text(quota.rank_bytes)} per rank"))
    return bounds
