"""How much memory a rank asks for after it was killed for memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.allocator.memory_growth import KilledRank, QuotaRoom, RankMemory, grown_memory, growth_text

GIB = 1 << 30
KILLED = KilledRank(rank=0, main=RankMemory(request_bytes=8 * GIB, limit_bytes=8 * GIB), most_bytes=64 * GIB, node="n1")


@pytest.mark.parametrize(
    ("killed", "grown"),
    [
        pytest.param(KILLED, RankMemory(request_bytes=12 * GIB, limit_bytes=12 * GIB), id="half as much again"),
        pytest.param(
            replace(KILLED, main=RankMemory(request_bytes=4 * GIB, limit_bytes=8 * GIB)),
            RankMemory(request_bytes=6 * GIB, limit_bytes=12 * GIB),
            id="the request keeps its share of the limit",
        ),
        pytest.param(
            replace(KILLED, main=RankMemory(request_bytes=8 * GIB)),
            RankMemory(request_bytes=12 * GIB),
            id="without a limit the request grows",
        ),
        pytest.param(
            replace(KILLED, most_bytes=10 * GIB),
            RankMemory(request_bytes=10 * GIB, limit_bytes=10 * GIB),
            id="up to what the job allows",
        ),
        pytest.param(replace(KILLED, most_bytes=0), None, id="not if the job does not allow it"),
        pytest.param(replace(KILLED, most_bytes=8 * GIB), None, id="not at its end"),
        pytest.param(replace(KILLED, most_bytes=8 * GIB + 1024), None, id="not by a kilobyte"),
        pytest.param(replace(KILLED, main=RankMemory()), None, id="not from nothing"),
        pytest.param(replace(KILLED, refusal="a LimitRange says no"), None, id="not if it is refused"),
        pytest.param(
            replace(KILLED, node_bytes=20 * GIB, others=RankMemory(request_bytes=9 * GIB)),
            RankMemory(request_bytes=10 * GIB, limit_bytes=10 * GIB),
            id="within its node, beside the other containers and what DaemonSets need",
        ),
        pytest.param(
            replace(KILLED, quotas=(QuotaRoom(name="q", is_of_limits=True, rank_bytes=9 * GIB),)),
            RankMemory(request_bytes=9 * GIB, limit_bytes=9 * GIB),
            id="within a quota of limits",
        ),
        pytest.param(
            replace(KILLED, quotas=(QuotaRoom(name="q", is_of_limits=False, rank_bytes=8 * GIB),)),
            None,
            id="not beyond a quota of requests",
        ),
    ],
)
def test_memory_grows_within_every_bound(killed: KilledRank, grown: RankMemory | None) -> None:
    assert grown_memory(killed) == grown


@pytest.mark.parametrize(
    ("killed", "said"),
    [
        pytest.param(KILLED, "it is tried again with 12 GiB of memory per rank instead of 8 GiB", id="it grows"),
        pytest.param(replace(KILLED, most_bytes=0), "", id="it is not wanted"),
        pytest.param(
            replace(KILLED, most_bytes=8 * GIB),
            "its memory cannot grow beyond 8 GiB: spec.growMemoryTo is 8 GiB",
            id="it is at its end",
        ),
        pytest.param(
            replace(KILLED, node_bytes=8 * GIB),
            "its memory cannot grow beyond 8 GiB: node n1 has 8 GiB",
            id="the node is small",
        ),
        pytest.param(
            replace(KILLED, quotas=(QuotaRoom(name="tight", is_of_limits=False, rank_bytes=8 * GIB),)),
            "its memory cannot grow beyond 8 GiB: ResourceQuota tight allows 8 GiB per rank",
            id="the quota is small",
        ),
        pytest.param(
            replace(KILLED, main=RankMemory()),
            "its memory cannot grow: the main container asks for none",
            id="it asks for none",
        ),
        pytest.param(replace(KILLED, refusal="too much"), "its memory cannot grow: too much", id="it is refused"),
    ],
)
def test_what_follows_is_said_in_a_clause(killed: KilledRank, said: str) -> None:
    assert growth_text(killed, grown_memory(killed)) == said


AMOUNTS = st.integers(min_value=0, max_value=1 << 62)


@given(request=AMOUNTS, limit=AMOUNTS, most=AMOUNTS, node=AMOUNTS, others=AMOUNTS, room=AMOUNTS)
def test_whatever_is_asked_for_is_within_all_bounds_and_ends(
    request: int, limit: int, most: int, node: int, others: int, room: int
) -> None:
    main = RankMemory(request_bytes=min(request, limit) if limit else request, limit_bytes=limit)
    quotas = (QuotaRoom(name="r", is_of_limits=False, rank_bytes=room),)
    killed = replace(KILLED, main=main, most_bytes=most, node_bytes=node, quotas=quotas)
    killed = replace(killed, others=RankMemory(request_bytes=others))
    for _ in range(120):  # from a byte to the largest amount: it ends at some bound
        grown = grown_memory(killed)
        if grown is None:
            return
        base, asked = (memory.limit_bytes or memory.request_bytes for memory in (killed.main, grown))
        assert base < asked <= most
        assert bool(grown.limit_bytes) == bool(killed.main.limit_bytes)
        assert grown.request_bytes + others <= min(room, node or room)
        killed = replace(killed, main=grown)
    raise AssertionError("it grows for ever")
