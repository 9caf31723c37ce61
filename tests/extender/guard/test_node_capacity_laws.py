"""Laws: when the guard is asked does not change what it knows."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coda.model import World
from tests.extender.guards import Known
from tests.extender.objects import node_json, placement, pod_json, rank_json

NODES = ("n1", "n2", "n3")
RANKS = 3

steps = st.lists(
    st.one_of(
        st.tuples(st.just("job"), st.sampled_from(["Queued", "Launched", "Running", "Succeeded"])),
        st.tuples(st.sampled_from(["create", "bind", "delete"]), st.integers(0, RANKS - 1)),
        st.tuples(st.just("resize"), st.sampled_from(NODES)),
    ),
    max_size=12,
)


def take(known: Known, pods: dict[int, object], kind: str, what: object) -> None:
    if kind == "job":
        known.job("gang", replicas=RANKS, phase=str(what), placement=placement(*NODES))
    elif kind == "resize":
        known.node(str(what), gpus=6)
    else:
        rank = int(str(what))
        node = NODES[rank] if kind == "bind" else None
        new = None if kind == "delete" else rank_json("gang", rank, NODES[rank], node=node)
        old = pods.pop(rank, None)
        if new is not None:
            pods[rank] = new
        if old is not None or new is not None:
            known.pod(old, new)


@given(steps)
def test_a_guard_asked_at_the_end_knows_what_one_asked_after_every_change_knows(
    changes: list[tuple[str, object]],
) -> None:
    often, once = Known(), Known()
    pods: tuple[dict[int, object], dict[int, object]] = ({}, {})
    for known in (often, once):
        for name in NODES:
            known.state.on_node(None, node_json(name))
            known.guard.node_changed(name)
    foreign = pod_json("foreign", gpus=1)
    for kind, what in changes:
        for known, ours in zip((often, once), pods, strict=True):
            take(known, ours, kind, what)
        often.ask(foreign, *NODES)
        often.state.snapshot()
    assert once.scores(foreign, *NODES) == often.scores(foreign, *NODES)
    assert once.ask(foreign, *NODES) == often.ask(foreign, *NODES)
    assert in_order(once.state.snapshot()) == in_order(often.state.snapshot())


def in_order(world: World) -> World:
    """The world with its jobs by id: they are kept in no order."""
    return replace(world, jobs=tuple(sorted(world.jobs, key=lambda job: job.id)))
