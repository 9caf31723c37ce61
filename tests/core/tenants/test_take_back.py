"""Lent GPUs come back from where they can: in turn over all nodes, else from one node, or one domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.model import Job
from coda.model.world import VirtualCluster
from tests.builders import rack, world
from tests.core.tenants.test_lent_gpus import decided, of, runs, stopped, world_of


def tenants(lab: int, crowd: int) -> tuple[VirtualCluster, ...]:
    return (VirtualCluster(name="lab", gpus=lab), VirtualCluster(name="crowd", gpus=crowd))


def singles(prefix: str, node: str, count: int, since_s: float) -> list[Job]:
    return [runs(of("crowd", f"{prefix}{number}", 1), node, since_s=since_s) for number in range(count)]


def mixed_nodes() -> list[Job]:
    """The crowd has all of n0, for long, and parts of n1 and n2. Of its 15 GPUs 8 are lent, so in turn 8 of these go:
    one node's worth, and no node is empty."""
    held = [*singles("old", "n0", 8, 0.0), *singles("mid", "n1", 4, 10.0), *singles("new", "n2", 3, 20.0)]
    return [*held, runs(of("lab", "a", 4), "n1"), runs(of("lab", "b", 5), "n2")]


def test_one_node_gives_what_all_nodes_in_turn_do_not() -> None:
    plan = decided(world_of([*mixed_nodes(), of("lab", "owner")], 3, tenants(17, 7)))
    assert stopped(plan) == [f"crowd/old{number}" for number in range(8)]


def test_of_several_nodes_the_one_whose_gangs_are_newest_gives() -> None:
    held = [*mixed_nodes(), *singles("older", "n3", 8, -5.0)]
    plan = decided(world_of([*held, of("lab", "owner")], 4, tenants(17, 15)))
    assert stopped(plan) == [f"crowd/old{number}" for number in range(8)]


def test_a_tenant_still_gives_no_more_than_it_borrowed() -> None:
    assert stopped(decided(world_of([*mixed_nodes(), of("lab", "owner")], 3, tenants(17, 8)))) == []


def test_the_largest_gang_goes_last_where_its_tenant_holds_too_much_by_less_than_all_of_it() -> None:
    """Of 8 GPUs that the crowd has on n0, three may be taken before the last gang: not four and then five, but three
    and then four."""
    held = [runs(of("crowd", "four", 4), "n0", since_s=20.0), *singles("one", "n0", 4, 10.0)]
    held.append(runs(of("lab", "a"), "n1"))
    plan = decided(world_of([*held, of("lab", "owner")], 2, tenants(16, 3)))
    assert stopped(plan) == ["crowd/four", *(f"crowd/one{number}" for number in range(4))]


def test_a_gang_gets_several_nodes() -> None:
    """In turn, 16 GPUs are taken from three nodes; two nodes give them, or only one pair where they must be close."""
    held = [*singles("x", "a-0", 8, 0.0), *singles("y", "a-1", 8, 1.0)]
    held += [*singles("mid", "b-0", 4, 10.0), *singles("new", "b-1", 3, 20.0)]
    held += [runs(of("lab", "a", 4), "b-0"), runs(of("lab", "b", 5), "b-1")]
    owner = of("lab", "owner", 8, replicas=2)
    expected = sorted([f"crowd/x{number}" for number in range(8)] + [f"crowd/y{number}" for number in range(8)])
    for gang in (owner, replace(owner, within="rack")):
        now = world((*rack("a", 2), *rack("b", 2)), [*held, gang], virtual_clusters=tenants(25, 7))
        assert stopped(decided(now)) == expected


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.lists(st.integers(0, 90), max_size=8)), min_size=2, max_size=4),
    st.sampled_from((4, 8)),
    st.integers(0, 20),
)
def test_an_owner_of_one_rank_waits_only_if_no_node_could_give(
    rows: Sequence[tuple[int, list[int]]], gpus: int, lent: int
) -> None:
    """Nodes are full, each with some of the owner's tenant and a crowd of gangs of one GPU, of any age."""
    held: list[Job] = []
    counts: list[int] = []
    for number, (_, ages) in enumerate(rows):
        counts.append(len(ages))
        held += [runs(of("crowd", f"c{number}-{i}", 1), f"n{number}", since_s=age) for i, age in enumerate(ages)]
        if len(ages) < 8:
            held.append(runs(of("lab", f"l{number}", 8 - len(ages)), f"n{number}"))
    crowd, lab = sum(counts), 8 * len(rows) - sum(counts)
    now = world_of([*held, of("lab", "owner", gpus)], len(rows), tenants(lab + gpus, max(0, crowd - lent)))
    assert bool(stopped(decided(now))) == any(gpus <= min(count, lent) for count in counts)


class Counted(tuple[str, ...]):
    """Nodes of a gang that count how often somebody goes through them: a compiled core calls nothing patched."""

    __slots__ = ()
    looks = 0

    def __iter__(self) -> Iterator[str]:
        Counted.looks += 1
        return super().__iter__()


def looks(held: Sequence[Job], waiting: Sequence[Job], own: tuple[VirtualCluster, ...] = tenants(100, 8)) -> int:
    """How often one cycle goes through the nodes of these gangs."""
    counted = []
    for one in held:
        assert one.placement is not None
        counted.append(replace(one, placement=replace(one.placement, nodes=Counted(one.placement.nodes))))
    Counted.looks = 0
    assert stopped(decided(world_of([*counted, *waiting], 3, own))) == []
    return Counted.looks


def test_a_take_back_in_vain_costs_two_looks_whoever_asks() -> None:
    """Once for both decisions of `decided`, and once in a cycle for all owners that ask for the same."""
    held = mixed_nodes()
    before = looks(held, [])
    once = looks(held, [of("lab", "owner")]) - before
    assert 0 < once <= 2 * 3 * 15, "in turn, with those that are given back, and node by node"
    owners = [replace(of("lab", f"owner{number}"), user=f"u{number}") for number in range(20)]
    assert looks(held, owners) - before == once


def team(name: str, gpus: int, parent: str = "") -> VirtualCluster:
    return VirtualCluster(name=name, gpus=gpus, parent=parent)


@pytest.mark.parametrize("newest", [3, 1])
def test_of_two_tenants_on_a_node_the_large_gangs_go_last(newest: int) -> None:
    """Each holds 2 GPUs too much, by a gang of 3 and one of 1: all four may stop if the small ones go first."""
    held = [runs(of("lab", "mine"), "n1")]
    for tenant in ("red", "blue"):
        held += [runs(of(tenant, f"g{size}", size), "n0", since_s=20.0 * (size == newest)) for size in (3, 1)]
    own = (team("lab", 16), team("red", 2), team("blue", 2))
    plan = decided(world_of([*held, of("lab", "owner")], 2, own))
    assert stopped(plan) == ["blue/g1", "blue/g3", "red/g1", "red/g3"]


def test_a_large_gang_that_may_not_stop_is_in_nobodys_way() -> None:
    """The team's organisation is within its own: the crowd gives, as beside any other job."""
    held = [runs(of("crowd", "three", 3), "n0", since_s=20.0), runs(of("crowd", "one", 1), "n0", since_s=10.0)]
    held += [runs(of("team", "big", 4), "n0", since_s=5.0), runs(of("lab", "mine"), "n1")]
    own = (team("lab", 16), team("crowd", 2), team("org", 100), team("team", 0, parent="org"))
    assert stopped(decided(world_of([*held, of("lab", "owner", 4)], 2, own))) == ["crowd/one", "crowd/three"]


TEAMS = ("red", "blue", "green")


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(TEAMS), st.integers(1, 4), st.integers(0, 90)), min_size=3, max_size=8),
        min_size=1,
        max_size=3,
    ),
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12)),
    st.integers(0, 8),
    st.sampled_from((8, 8, 6, 4, 1)),
)
def test_an_owner_of_one_rank_gets_what_any_order_would_give(
    rows: Sequence[Sequence[tuple[str, int, int]]], lent: tuple[int, int, int], spare: int, gpus: int
) -> None:
    """Two teams of an organisation and one of none, with gangs of any size and age on full nodes: by brute force.

    `spare`: what the organisation owns besides what its teams do."""
    held: list[Job] = []
    by_node: list[list[tuple[str, int]]] = []
    for number, row in enumerate(rows):
        gangs: list[tuple[str, int]] = []
        for name, size, since_s in row:
            if sum([size for _, size in gangs]) + size <= 8:
                held.append(runs(of(name, f"g{number}-{len(gangs)}", size), f"n{number}", since_s=since_s))
                gangs.append((name, size))
        if left := 8 - sum([size for _, size in gangs]):
            held.append(runs(of("lab", f"l{number}", left), f"n{number}"))
        by_node.append(gangs)
    holds = Counter[str]()
    for name, size in [gang for gangs in by_node for gang in gangs]:
        for seat in seats_of(name):
            holds[seat] += size
    too_much = {name: min(lent[place], holds[name]) for place, name in enumerate(TEAMS)}
    too_much["org"] = too_much["red"] + too_much["blue"] - spare
    own = [team(name, holds[name] - too_much[name], "" if name == "green" else "org") for name in TEAMS]
    own += [team("org", holds["org"] - too_much["org"]), team("lab", 8 * len(rows) + gpus)]
    now = world_of([*held, of("lab", "owner", gpus)], len(rows), tuple(own))
    assert bool(stopped(decided(now))) == any(gives(gangs, too_much, gpus) for gangs in by_node)


def seats_of(name: str) -> tuple[str, ...]:
    return (name,) if name == "green" else ("org", name)


def gives(gangs: Sequence[tuple[str, int]], too_much: Mapping[str, int], gpus: int) -> bool:
    """True if some of these gangs hold so many GPUs, and stop in some order while their tenants hold too much."""
    if gpus <= 0:
        return True
    return any(
        all(too_much[seat] > 0 for seat in seats_of(name))
        and gives(
            [*gangs[:place], *gangs[place + 1 :]],
            {seat: left - size * (seat in seats_of(name)) for seat, left in too_much.items()},
            gpus - size,
        )
        for place, (name, size) in enumerate(gangs)
    )


def test_a_second_look_in_vain_costs_next_to_nothing_for_further_kinds_of_owners() -> None:
    """The crowd holds 6 GPUs too much, by gangs of 2 on nodes of its own: none gives 8."""
    held = [
        runs(of("crowd", f"c{node}-{number}", 1, replicas=2), f"n{node}", f"n{node}")
        for node in (0, 1)
        for number in range(4)
    ]
    held.append(runs(of("lab", "mine"), "n2"))
    kinds = [of("lab", f"owner{ranks}", replicas=ranks) for ranks in range(1, 12)]
    costs = [looks(held, kinds[:count], tenants(1000, 10)) for count in (0, 1, 11)]
    in_turn = 2 * 3  # gangs until the crowd has nothing to lose, in both decisions of `decided`
    assert costs[2] - costs[1] == 10 * in_turn
