"""The nodes that constraints select, found for all nodes at once, are those that each node says for itself."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coda.model import Node
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Taint, Toleration
from coda.nodes import Exclusion, FreeCapacity, NodeSearch, exclusion, is_blocked
from coda.policy import PolicyConfig
from tests.builders import HOST_LABEL, job, node

KEYS = ("zone", "gen", HOST_LABEL)
VALUES = ("a", "b", "1", "5", "-3", "05", "n1", "9" * 30)
names = st.sampled_from([f"n{number}" for number in range(12)])
texts = st.sampled_from(VALUES)
requirements = st.builds(
    Requirement,
    key=st.sampled_from((*KEYS, "none has it")),
    operator=st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd")),
    values=st.lists(texts | names, max_size=3).map(tuple),
)
fields = st.builds(
    Requirement,
    key=st.sampled_from(("metadata.name", "metadata.uid")),
    operator=st.sampled_from(("In", "NotIn", "Exists")),
    values=st.lists(names, max_size=2).map(tuple),
)
terms = st.builds(
    NodeTerm, labels=st.lists(requirements, max_size=3).map(tuple), fields=st.lists(fields, max_size=2).map(tuple)
)
constraints = st.builds(
    NodeConstraints,
    selector=st.dictionaries(st.sampled_from(KEYS), texts, max_size=2),
    terms=st.lists(terms, max_size=4).map(tuple),
    tolerations=st.sampled_from(((), (Toleration(key="gpu", operator="Exists"),))),
)
labels = st.dictionaries(st.sampled_from(("zone", "gen")), texts, max_size=2)
taints = st.sampled_from(((), (Taint(key="gpu"),), (Taint(key="node.kubernetes.io/memory-pressure"),)))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Node, ...]:
    count = draw(st.integers(0, 12))
    return tuple(
        node(f"n{number}", labels=draw(labels), taints=draw(taints), schedulable=draw(st.booleans()))
        for number in range(count)
    )


def found(search: NodeSearch, wanted: NodeConstraints) -> tuple[set[str], set[str], dict[Exclusion, int]]:
    eligible = search.rank_class(job(constraints=wanted)).eligible
    all_nodes = search.capacity.nodes
    return (
        {all_nodes[number].name for number in eligible.matching},
        {all_nodes[number].name for number in eligible.accepting},
        {cause: count for cause, count in eligible.excluded.items() if count},
    )


def expected(nodes: tuple[Node, ...], wanted: NodeConstraints) -> tuple[set[str], set[str], dict[Exclusion, int]]:
    causes = {each.name: exclusion(wanted, each) for each in nodes}
    matching = {name for name, cause in causes.items() if cause is None}
    accepting = {each.name for each in nodes if each.name in matching and not is_blocked(wanted, each)}
    counts = {cause: [*causes.values()].count(cause) for cause in Exclusion}
    return matching, accepting, {cause: count for cause, count in counts.items() if count}


@given(clusters(), constraints)
def test_all_at_once_is_as_each_alone(nodes: tuple[Node, ...], wanted: NodeConstraints) -> None:
    search = NodeSearch(FreeCapacity(nodes, ()), PolicyConfig())
    assert found(search, wanted) == expected(nodes, wanted)


@given(clusters(), constraints, st.lists(st.tuples(st.integers(0, 11), taints, st.booleans()), max_size=5))
def test_a_node_that_changes_is_judged_again(
    nodes: tuple[Node, ...], wanted: NodeConstraints, changes: list[tuple[int, tuple[Taint, ...], bool]]
) -> None:
    capacity = FreeCapacity(nodes, ())
    search = NodeSearch(capacity, PolicyConfig())
    found(search, wanted)
    for number, new_taints, schedulable in changes:
        if number < len(nodes):
            changed = replace(capacity.nodes[number], taints=new_taints, schedulable=schedulable)
            search.replace_node(number, changed)
    assert found(search, wanted) == expected(tuple(capacity.nodes), wanted)


def test_ten_thousand_terms_on_two_thousand_nodes_take_no_minute() -> None:
    """It took 68 s, and as long again for each version of the affinity: see H7 of the hostile reading."""
    nodes = tuple(node(f"node-{number}") for number in range(2000))
    search = NodeSearch(FreeCapacity(nodes, ()), PolicyConfig())
    many = tuple(
        NodeTerm(labels=(Requirement(key=HOST_LABEL, operator="In", values=(f"other-{number}",)),))
        for number in range(9_999)
    )
    last = NodeTerm(labels=(Requirement(key=HOST_LABEL, operator="In", values=("node-7",)),))
    started_s = time.process_time()
    eligible = search.rank_class(job(constraints=NodeConstraints(terms=(*many, last)))).eligible
    first_s = time.process_time() - started_s
    assert {capacity_node.name for capacity_node in (search.capacity.nodes[n] for n in eligible.matching)} == {"node-7"}
    for number in range(100):
        search.replace_node(number, replace(search.capacity.nodes[number], schedulable=False))
    assert first_s < 20.0
    assert time.process_time() - started_s < 40.0
