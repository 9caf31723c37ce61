"""The tree of virtual clusters: what is whose own, and what becomes of parents that cannot be used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model.world import VirtualCluster
from coda.tenants import MAX_LEVELS, Detached, TenantTree


def vc(
    name: str, gpus: int | None = None, *, parent: str = "", may_borrow: bool = True, cpu_m: int | None = None
) -> VirtualCluster:
    return VirtualCluster(name=name, gpus=gpus, cpu_m=cpu_m, parent=parent, may_borrow=may_borrow)


def test_a_job_counts_on_every_level_of_its_path() -> None:
    tree = TenantTree([vc("org", 16), vc("team", 8, parent="org"), vc("squad", 4, parent="team"), vc("other", 4)])
    assert tree.path("squad") == ("org", "team", "squad")
    assert tree.path("org") == ("org", "org/"), "what its own jobs hold has a seat besides those of its children"
    assert tree.path("other") == ("other",)
    assert tree.path("unknown") == ("unknown",)
    assert tree.seat("org/").own_gpus == 8
    assert tree.seat("unknown").own_gpus == 0
    assert tree.below("org") == {"org", "team", "squad"}
    assert tree.troubles == {}


def test_a_parent_without_a_quota_owns_what_its_children_do() -> None:
    tree = TenantTree([vc("org", may_borrow=False), vc("a", 4, parent="org"), vc("b", parent="org")])
    assert (tree.seat("org").own_gpus, tree.seat("org").limit_gpus) == (4, 4)
    assert (tree.seat("b").own_gpus, tree.seat("b").limit_gpus) == (0, None)
    nothing = TenantTree([vc("org", may_borrow=False), vc("a", parent="org")])
    assert nothing.seat("org").limit_gpus is None, "what nobody has a quota of is not limited"


def test_children_that_ask_for_more_than_their_parent_has_own_their_part() -> None:
    tree = TenantTree([vc("org", 10), vc("a", 10, parent="org", may_borrow=False), vc("b", 5, parent="org")])
    assert (tree.seat("a").own_gpus, tree.seat("b").own_gpus, tree.seat("org/").own_gpus) == (7, 3, 0)
    assert tree.seat("a").limit_gpus == 10, "its limit stays as it was written"
    said = "the 2 VirtualClusters below it ask for 15 GPUs and it owns 10 GPUs: each owns its part of that"
    assert tree.shortage_of_children("org") == said
    part = "VirtualCluster b owns 3 GPUs of its 5 GPUs: its parent org has less than its children ask for"
    assert tree.troubles["b"] == part
    assert "org" not in tree.troubles


@pytest.mark.parametrize(
    ("tenants", "detached", "sentence"),
    [
        pytest.param(
            [vc("a", 4, parent="gone")],
            {"a": Detached.MISSING},
            "VirtualCluster a counts as a top-level one: its parent gone does not exist",
            id="a parent that does not exist",
        ),
        pytest.param(
            [vc("a", 4, parent="a")],
            {"a": Detached.LOOP},
            "VirtualCluster a counts as a top-level one: its parents form a loop (a < a)",
            id="its own parent",
        ),
        pytest.param(
            [vc("c", parent="b"), vc("b", parent="a"), vc("a", 4, parent="c"), vc("d", parent="a")],
            {"a": Detached.LOOP, "b": Detached.LOOP, "c": Detached.LOOP},
            "VirtualCluster a counts as a top-level one: its parents form a loop (a < c < b < a)",
            id="a loop of three, and one below it",
        ),
    ],
)
def test_whose_parent_cannot_be_used_stands_at_the_top(
    tenants: list[VirtualCluster], detached: dict[str, Detached], sentence: str
) -> None:
    tree = TenantTree([*tenants, vc("other", 8)])
    names = [one.name for one in tenants]
    assert {name: found[0] for name in names if (found := tree.detached(name))} == detached
    assert all(tree.path(name)[0] == name for name in detached)
    assert tree.troubles["a"] == sentence
    assert all(name in tree.troubles for name in names), "those below such a tenant say it too"
    assert tree.seat("a").own_gpus == 4
    assert (tree.path("other"), tree.seat("other").own_gpus, "other" in tree.troubles) == (("other",), 8, False)


def test_a_branch_that_is_too_deep_ends_at_the_limit() -> None:
    names = [f"t{level}" for level in range(1, MAX_LEVELS + 3)]
    tree = TenantTree([vc(name, 1, parent=above) for above, name in zip(["", *names], names, strict=False)])
    assert len(tree.path(names[MAX_LEVELS - 1])) == MAX_LEVELS
    first = names[MAX_LEVELS]
    assert tree.detached(first) == (
        Detached.TOO_DEEP,
        f"VirtualCluster {first} counts as a top-level one: it would be on level 9, and 8 levels are the most",
    )
    assert tree.path(names[-1]) == (first, names[-1])


def test_a_very_long_loop_is_found_soon_and_said_in_one_sentence() -> None:
    count = 3000
    tree = TenantTree([vc(f"t{number:04}", 1, parent=f"t{(number + 1) % count:04}") for number in range(count)])
    assert len(tree.troubles) == count
    assert all(len(text) < 200 for text in tree.troubles.values())


NAMES = ("a", "b", "c", "d", "e", "f")
TENANTS = st.lists(
    st.tuples(st.sampled_from(("", *NAMES, "gone")), st.none() | st.integers(0, 12), st.booleans()),
    min_size=1,
    max_size=len(NAMES),
).map(
    lambda rows: [
        vc(name, gpus, parent=parent, may_borrow=may_borrow)
        for name, (parent, gpus, may_borrow) in zip(NAMES, rows, strict=False)
    ]
)


@given(TENANTS, st.randoms(use_true_random=False))
def test_what_is_owned_below_is_never_more_than_what_is_owned(tenants: list[VirtualCluster], random: object) -> None:
    """A law, whatever parents there are: on each level, and without anything lost."""
    tree = TenantTree(tenants)
    for one in tenants:
        path = tree.path(one.name)
        assert path[0] in {each.name for each in tenants}
        assert len(path) <= MAX_LEVELS + 1
        children = tree.children(one.name)
        if children:
            below = sum(tree.seat(child).own_gpus for child in children)
            assert below + tree.seat(f"{one.name}/").own_gpus == tree.seat(one.name).own_gpus
        if not one.parent or tree.detached(one.name):
            assert tree.seat(one.name).own_gpus >= (one.gpus or 0)
    random.shuffle(tenants)  # type: ignore[attr-defined]
    again = TenantTree(tenants)
    assert (again.seats(), again.troubles) == (tree.seats(), tree.troubles), "the order does not matter"
