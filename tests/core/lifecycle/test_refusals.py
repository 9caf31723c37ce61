"""Nodes that refuse a gang: what it remembers of them, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.correlation.suspect_nodes import CORDON_S, NodeEvidence, NodeXid, suspect_nodes
from coda.cycle import decide
from coda.lifecycle import Progress, RankPod, Terms
from coda.lifecycle.retry import MOST_REMEMBERED
from coda.lifecycle.steps import next_step
from coda.model import Phase
from coda.policy import PolicyConfig
from tests.builders import job, node, world
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress, situation

SAID = "0/12 nodes are available: 1 node(s) had volume node affinity conflict"


def refused(rank: int, where: str, *, attempt: int = 1, since_s: float = NOW_S - 5, **changes: object) -> RankPod:
    return replace(
        pod(rank, attempt=attempt, node=None, pinned_to=where),
        unschedulable_since_s=since_s,
        reason="Unschedulable",
        message=SAID,
        **changes,  # type: ignore[arg-type]  # tests name the fields they change
    )


def after_refusal(before: Progress, nodes: tuple[str, ...], at_s: float) -> Progress:
    """The progress of a job that was placed on `nodes` at `at_s`, and whose nodes that begin with b refused it."""
    ranks, attempt = len(nodes), before.attempt
    pods = [
        refused(rank, name, attempt=attempt, since_s=at_s)
        if name.startswith("b")
        else pod(rank, attempt=attempt, node=name, pinned_to=name)
        for rank, name in enumerate(nodes)
    ]
    launched = situation(
        Phase.LAUNCHED,
        *pods,
        terms=Terms(replicas=ranks),
        progress=replace(before, phase=Phase.LAUNCHED, launch_s=at_s),
        placement=plan(attempt=attempt, replicas=ranks, nodes=nodes, bind_deadline_s=at_s + 60),
    )
    ended = next_step(launched, at_s + 6, CONFIG).progress
    gone = situation(Phase.RESTARTING, progress=ended, placement=None, terms=Terms(replicas=ranks))
    return next_step(gone, at_s + 7, CONFIG).progress


def attempts(wrong: int, right: int, ranks: int) -> int:
    """How many attempts a gang needs whose volume only the right nodes take, as planner and operator take turns."""
    nodes = [node(f"b{n:02d}") for n in range(wrong)] + [node(f"g{n:02d}") for n in range(right)]
    known, at_s = progress(Phase.QUEUED, launch_s=0.0), NOW_S
    for attempt in range(1, 60):
        at_s = max(at_s, known.not_before_s)
        waits = situation(Phase.QUEUED, progress=known, placement=None, terms=Terms(replicas=ranks))
        known = next_step(waits, at_s, CONFIG).progress
        wants = job("j", replicas=ranks, gpus=8, attempt=known.attempt, avoid=known.avoid)
        (start,) = decide(world(nodes, [wants]), PolicyConfig(), now_s=at_s).starts
        if all(name.startswith("g") for name in start.nodes):
            return attempt
        known, at_s = after_refusal(known, start.nodes, at_s), at_s + 7
    raise AssertionError(f"never started: {known.message}")


@pytest.mark.parametrize(
    ("wrong", "right", "ranks", "most"), [(6, 4, 1, 7), (8, 4, 1, 9), (20, 20, 1, 21), (12, 12, 4, 4)]
)
def test_a_gang_that_only_some_nodes_take_finds_them(wrong: int, right: int, ranks: int, most: int) -> None:
    assert attempts(wrong, right, ranks) <= most


def test_nodes_that_refused_are_tried_again_if_no_other_place_is_found_in_time() -> None:
    known = progress(Phase.QUEUED, launch_s=0.0, in_a_row=20, avoid={"b1": NOW_S + 9, "b2": NOW_S + 9})
    known = after_refusal(known, ("b0",), NOW_S)
    until_s = known.not_before_s + CONFIG.avoid_node_s
    assert dict(known.avoid) == {"b0": until_s, "b1": until_s, "b2": until_s}
    waits = situation(Phase.QUEUED, progress=known, placement=None, terms=Terms(replicas=1))
    assert next_step(waits, known.not_before_s, CONFIG).wake_s == until_s
    assert not next_step(waits, until_s, CONFIG).progress.avoid


def test_the_nodes_of_an_earlier_row_are_not_remembered_for_longer() -> None:
    known = progress(Phase.QUEUED, launch_s=0.0, in_a_row=0, avoid={"b1": NOW_S + 9})
    assert after_refusal(known, ("b0",), NOW_S).avoid["b1"] == NOW_S + 9


def test_the_end_of_a_cordon_stays_as_it_was() -> None:
    """An administrator who ends it is obeyed: it is known by its time."""
    known = progress(Phase.LAUNCHED, in_a_row=3, avoid={"sick": 5000.0, "well": 6000.0, "b1": NOW_S})
    now = situation(
        Phase.LAUNCHED,
        refused(0, "b0"),
        refused(1, "b0"),
        progress=known,
        cordoned={"sick": 5000.0},
        ended_cordons={"well": frozenset({6000.0})},
    )
    config = replace(CONFIG, avoid_node_s=50_000.0)
    avoid = next_step(now, NOW_S, config).progress.avoid
    assert (avoid["sick"], avoid["well"]) == (5000.0, 6000.0)
    assert avoid["b1"] == avoid["b0"] > NOW_S + 50_000


def test_a_cordon_that_is_over_by_time_stays_over() -> None:
    """For as long as its evidence is remembered, which is five hours more, its time tells that it was one."""
    xid = NodeXid(node="sick", gpu="0", xid=79, first_s=NOW_S, time_s=NOW_S)
    until_s = NOW_S + CORDON_S
    assert [one.until_s for one in suspect_nodes(NodeEvidence(xids=[xid]), 40, NOW_S + 1).cordons] == [until_s]
    after_s = until_s + 1
    verdict = suspect_nodes(NodeEvidence(xids=[xid]), 40, after_s)
    assert not verdict.cordons
    known = progress(Phase.LAUNCHED, in_a_row=11, avoid={"sick": until_s, "b1": until_s - 9}, launch_s=after_s - 5)
    now = situation(
        Phase.LAUNCHED,
        refused(0, "b0", since_s=after_s - 5),
        refused(1, "b0", since_s=after_s - 5),
        progress=known,
        ended_cordons=verdict.ended,
    )
    avoid = next_step(now, after_s, CONFIG).progress.avoid
    assert avoid["sick"] == until_s
    assert avoid["b1"] == avoid["b0"] > after_s


def test_all_ranks_that_are_refused_name_their_nodes_and_no_others_do() -> None:
    now = situation(
        Phase.LAUNCHED,
        pod(0, node="g0", pinned_to="g0", unschedulable_since_s=NOW_S - 9),
        refused(1, "b1", since_s=NOW_S - 4.9),
        refused(2, "b2"),
        pod(3, node=None, pinned_to="g3"),
        terms=Terms(replicas=4),
        placement=plan(replicas=4),
    )
    step = next_step(now, NOW_S, CONFIG)
    assert set(step.progress.avoid) == {"b1", "b2"}
    assert "b2 refused rank 2" in step.progress.message


def test_the_list_of_refused_nodes_has_an_end_and_the_last_ones_are_in_it() -> None:
    many = {f"b{n:04d}": NOW_S + 60 for n in range(MOST_REMEMBERED)}
    ranks = tuple(f"b9{n:02d}" for n in range(64))
    known = after_refusal(progress(Phase.QUEUED, launch_s=0.0, in_a_row=9, avoid=many), ranks, NOW_S)
    assert len(known.avoid) == MOST_REMEMBERED
    assert known.avoid.keys() >= set(ranks)


def test_a_gang_whose_image_few_nodes_have_finds_them_before_its_attempts_are_over() -> None:
    """Only n4 and n5 have it; the attempts last longer than the nodes of one failure are avoided."""
    nodes, known, at_s = [node(f"n{number}") for number in range(6)], progress(Phase.QUEUED, launch_s=0.0), NOW_S
    places: list[tuple[str, ...]] = []
    while known.phase is Phase.QUEUED and len(places) < 3:
        at_s, terms = max(at_s, known.not_before_s), Terms(replicas=2)
        known = next_step(situation(Phase.QUEUED, progress=known, placement=None, terms=terms), at_s, CONFIG).progress
        wants = job("j", replicas=2, gpus=8, attempt=known.attempt, avoid=known.avoid)
        (start,) = decide(world(nodes, [wants]), PolicyConfig(), now_s=at_s).starts
        places.append(tuple(start.nodes))
        pods = [
            pod(rank, attempt=known.attempt, node=name, pinned_to=name, reason="ErrImageNeverPull")
            for rank, name in enumerate(start.nodes)
        ]
        late = situation(
            Phase.STARTING,
            *pods,
            terms=terms,
            progress=replace(known, phase=Phase.STARTING, launch_s=at_s),
            placement=plan(attempt=known.attempt, nodes=start.nodes),
        )
        known, at_s = next_step(late, at_s + 1801, CONFIG).progress, at_s + 1802
        gone = situation(Phase.RESTARTING, progress=known, placement=None, terms=terms)
        known = next_step(gone, at_s, CONFIG).progress
    assert sorted(places[2]) == ["n4", "n5"]
