"""Small random worlds for the laws: few nodes, few jobs, everything that `decide` looks at, and full of collisions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from coda.model import Job, Node, Phase, World
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Taint, Toleration
from coda.model.job import LocalityStep
from coda.model.world import ArrayQuota, Quota, VirtualCluster
from tests.builders import HOST_LABEL, job, node, planned, quota, resources, running, world

ZONE_LABEL = "zone"
NOW_S = 100.0

_TAINTS = (
    Taint(key="pool"),
    Taint(key="old", value="very", effect="NoExecute"),
    Taint(key="slow", effect="PreferNoSchedule"),
    Taint(key="node.kubernetes.io/disk-pressure"),
)
_TERMS = (
    NodeTerm(labels=(Requirement(key="type", operator="In", values=("a", "b")),)),
    NodeTerm(labels=(Requirement(key="type", operator="NotIn", values=("a",)),)),
    NodeTerm(labels=(Requirement(key="type", operator="Exists"), Requirement(key="age", operator="Gt", values=("1",)))),
    NodeTerm(fields=(Requirement(key="metadata.name", operator="In", values=("n1",)),)),
    NodeTerm(),
)


_PREFERENCES = (
    *((),) * 4,
    (LocalityStep("rack", 99.0),),
    (LocalityStep("rack", 100.0),),
    (LocalityStep("node", 98.0), LocalityStep("moon", 1.0), LocalityStep("zone", 50.0)),
)

_TOLERANT = Toleration(operator="Exists")
_DEMANDS = (
    *(NodeConstraints(tolerations=(_TOLERANT,)),) * 8,
    NodeConstraints(),
    NodeConstraints(tolerations=(Toleration(key="pool", operator="Exists"),)),
    NodeConstraints(selector={"type": "a"}, tolerations=(_TOLERANT,)),
    NodeConstraints(selector={"type": "b", "age": "2"}),
    *(NodeConstraints(terms=(term,), tolerations=(_TOLERANT,)) for term in _TERMS),
    NodeConstraints(terms=_TERMS[2:4], tolerations=(_TOLERANT,)),
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    labels = draw(st.fixed_dictionaries({}, optional={"type": st.sampled_from("ab"), "age": st.sampled_from("123")}))
    rack = draw(st.sampled_from((None, "r0", "r1", "r2")))
    zone = {} if rack is None else {ZONE_LABEL: "z0" if rack == "r0" else "z1"}
    built = node(
        name,
        gpus=draw(st.integers(2, 6)),
        cores=draw(st.integers(4, 12)),
        memory_gib=draw(st.integers(4, 12)),
        pods=draw(st.integers(2, 8)),
        rack=rack,
        labels={**labels, **zone},
        taints=tuple(draw(st.lists(st.sampled_from(_TAINTS), max_size=1))),
        schedulable=draw(st.integers(0, 9)) > 0,
        other={"rdma": draw(st.integers(1, 4))},
    )
    bare = draw(st.integers(0, 9)) == 0
    return replace(built, labels={k: v for k, v in built.labels.items() if k != HOST_LABEL}) if bare else built


@st.composite
def twins(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[Node, ...]:
    """Nodes that differ in little but their names, two to a rack: most clusters look like this."""
    gpus, cores = draw(st.integers(2, 6)), draw(st.integers(4, 12))
    taints = st.sampled_from(((), (), _TAINTS[2:3]))  # the taint decides between equal nodes only
    return tuple(
        node(name, gpus=gpus, cores=cores, rack=f"r{number // 2}", taints=draw(taints))
        for number, name in enumerate(names)
    )


@st.composite
def jobs(draw: st.DrawFn, name: str, node_names: tuple[str, ...], *, preferring: bool = False) -> Job:
    built = job(
        name,
        namespace=draw(st.sampled_from(("team", "other"))),
        replicas=draw(st.integers(1, 5)),
        gpus=draw(st.sampled_from((1, 1, 2, 3, 0))),
        cores=draw(st.sampled_from((0.5, 1, 2, 3))),
        memory_gib=draw(st.integers(0, 3)),
        other=draw(st.sampled_from(({}, {}, {}, {"rdma": 1}))),
        attempt=draw(st.integers(1, 2)),
        priority=draw(st.integers(0, 1)),
        queued_s=float(draw(st.integers(0, 2))),
        not_before_s=draw(st.sampled_from((0.0, 0.0, 0.0, NOW_S, NOW_S + 1))),
        constraints=draw(st.sampled_from(_DEMANDS)),
        avoid=draw(st.sampled_from(((), (), (), (), node_names[:1]))),
        within=draw(st.sampled_from((None, None, None, None, "rack", "zone", "rack", "node", "moon"))),
        quota={"pods": 1000, "gpus": 1000},
        user=draw(st.sampled_from(("ann", "bob"))),
        virtual_cluster=draw(st.sampled_from(("lab", "firm"))),
        returned=draw(st.sampled_from((False, False, False, True))),
    )
    built = replace(
        built,
        prefers=draw(st.sampled_from(_PREFERENCES)) if preferring else (),
        served_s=draw(st.sampled_from((0.0, 0.0, 600.0, 9000.0))),
        remaining_s=draw(st.sampled_from((None, 50.0, 500.0, 5000.0))),
    )
    # The state a job is in: waiting mostly, else planned, launching or running somewhere (the node may have vanished).
    places = st.lists(st.sampled_from((*node_names, "gone")), min_size=built.replicas, max_size=built.replicas)
    state = draw(st.sampled_from(("waiting",) * 6 + ("planned", "launching", "running", "edited", "leftover")))
    if state == "waiting":
        return built
    if state == "leftover":
        return replace(built, unbound={0: draw(st.sampled_from(node_names))})
    where = draw(places)
    if state == "planned":
        return planned(built, *where)
    if state == "edited":
        return replace(planned(built, *where), generation=built.generation + 1)
    if state == "running":
        return running(built, *where)
    bound = draw(st.frozensets(st.integers(0, built.replicas - 1)))
    unbound = {rank: name for rank, name in enumerate(where) if rank not in bound}
    return replace(planned(built, *where, phase=Phase.LAUNCHED), bound=bound, unbound=unbound)


@st.composite
def quotas(draw: st.DrawFn, name: str) -> Quota:
    return quota(
        name,
        namespace=draw(st.sampled_from(("team", "other"))),
        used={"pods": draw(st.integers(0, 2)) * 1000},
        hard={"pods": draw(st.integers(2, 20)) * 1000, "gpus": draw(st.integers(2, 20)) * 1000},
    )


def tenants() -> st.SearchStrategy[tuple[VirtualCluster, ...]]:
    lab = st.builds(
        VirtualCluster,
        name=st.just("lab"),
        gpus=st.sampled_from((None, 1, 4)),
        cpu_m=st.sampled_from((None, 0, 2000)),
        weight=st.sampled_from((1.0, 2.0)),
        may_borrow=st.booleans(),
    )
    return st.one_of(st.just(()), st.tuples(lab), st.tuples(lab, st.just(VirtualCluster(name="firm", gpus=2))))


def array_quotas() -> st.SearchStrategy[tuple[ArrayQuota, ...]]:
    one = st.builds(
        ArrayQuota,
        name=st.just("one"),
        selector=st.sampled_from(({}, {"gpu": "a"})),
        reserve_cores_per_gpu=st.sampled_from((None, 0.0, 1.0, 4.0)),
        large_gpus=st.sampled_from((None, 0, 2, 99)),
    )
    return st.one_of(st.just(()), st.tuples(one), st.tuples(one, st.just(ArrayQuota(name="two", large_share=0.5))))


@st.composite
def worlds(draw: st.DrawFn, *, max_nodes: int = 6, max_jobs: int = 7, preferring: bool = False) -> World:
    """With `preferring`, some gangs wait to be close together although they could start."""
    names = tuple(f"n{number}" for number in range(draw(st.integers(2, max_nodes))))
    amounts = st.builds(
        resources, gpus=st.integers(0, 2), cores=st.integers(0, 3), memory_gib=st.integers(0, 3), pods=st.integers(0, 1)
    )
    return world(
        draw(st.one_of(twins(names), st.tuples(*(nodes(name) for name in names)))),
        [draw(jobs(f"j{number}", names, preferring=preferring)) for number in range(draw(st.integers(2, max_jobs)))],
        quotas=[draw(quotas(f"q{number}")) for number in range(draw(st.sampled_from((0, 0, 0, 1, 2))))],
        foreign=draw(st.dictionaries(st.sampled_from(names), amounts, max_size=2)),
        virtual_clusters=draw(tenants()),
        array_quotas=draw(array_quotas()),
        in_flight=draw(st.dictionaries(st.sampled_from((*names, "gone")), amounts, max_size=2)),
    )
