"""Nodes of one GPU type are kept for one overdue job, and those of another for another: they share none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.cycle import decide
from coda.history import FinishedRun
from coda.model import Decision, Job, Node, WaitCode
from coda.model.constraints import NodeConstraints
from coda.model.decision import StopCause
from coda.policy import PolicyConfig
from coda.promises import PromiseBook
from tests.builders import node, resources, world
from tests.core.promises import test_promise_laws as laws
from tests.core.promises.test_promises import ARRIVAL, CODA, NOW_S, gpu, ran, started

TYPE = "nvidia.com/gpu.product"
NODES = tuple(node(name, gpus=4, cores=12, labels={TYPE: product}) for name, product in (("a", "H100"), ("b", "L4")))


def typed(built: Job, product: str) -> Job:
    return replace(built, constraints=NodeConstraints(selector={TYPE: product}))


MANY = tuple(replace(one, name=f"{one.name}{number}") for one in NODES for number in range(2))
HELD = (ran(gpu("x", 2), "a", for_s=500, limit_s=10_000), ran(gpu("y", 2), "b", for_s=500, limit_s=3_000))
"""Two GPUs are free on each node, until `y` ends after 2500 s, and `x` much later."""
FIRST, SECOND = (typed(gpu(f"large-{product}", 4, waits_s=20_000), product) for product in ("H100", "L4"))


def decided(
    *jobs: Job, book: PromiseBook | None = None, nodes: tuple[Node, ...] = NODES, config: PolicyConfig = ARRIVAL
) -> Decision:
    return decide(world(nodes, (*HELD, *jobs)), config, NOW_S, book=book)


def kept_for(book: PromiseBook) -> dict[str, list[str]]:
    return {one.job.split("/")[1]: list(one.nodes) for one in book.promise_by_job.values() if one.nodes}


@pytest.mark.parametrize("config", [ARRIVAL, CODA], ids=["arrival", "coda"])
def test_nodes_of_each_type_are_kept_for_the_first_that_waits_for_it(config: PolicyConfig) -> None:
    """However many wait in line for the other type."""
    book, others = PromiseBook(), [typed(gpu(f"l{number}", 4, waits_s=20_500 + number), "H100") for number in range(9)]
    small = [typed(gpu(f"small-{product}", 1), product) for product in ("H100", "L4")]
    plan = decided(*others, SECOND, *small, book=book, config=config)
    assert kept_for(book) == {"l8": ["a"], "large-L4": ["b"]}
    told = {one.job.split("/")[1]: one.reason for one in plan.refusals}
    assert started(plan) == {}
    assert {name: told[name].holders for name in ("small-H100", "small-L4")} == {
        "small-H100": ("team/l8",),
        "small-L4": (SECOND.id,),
    }
    assert told["small-L4"].code is WaitCode.HELD_BY_POLICY
    assert all("its start is promised" in told[name].message for name in ("l8", "large-L4"))
    assert "promised" not in told["l7"].message


def test_of_jobs_that_share_nodes_one_has_nodes_kept() -> None:
    """What the second one may use is a part of what the first one may, or the other way round."""
    book = PromiseBook()
    decided(gpu("any", 4, waits_s=20_500), FIRST, SECOND, book=book)
    assert kept_for(book) == {"any": ["a"]}
    book = PromiseBook()
    decided(FIRST, gpu("any", 4, waits_s=19_500), replace(SECOND, queued_s=NOW_S - 19_000), book=book)
    assert kept_for(book) == {"large-H100": ["a"], "large-L4": ["b"]}


def test_nodes_stay_kept_for_several_behind_any_number_that_never_fit() -> None:
    """Those look at the nodes of both types, and want more cores than daemons leave."""
    never = [gpu(f"never{number}", 1, cores=12, waits_s=30_000) for number in range(9)]
    never = [replace(one, request=one.request.with_cpu(12_000 - number)) for number, one in enumerate(never)]
    foreign = {one.name: resources(cores=1, pods=1) for one in NODES}
    now, book = world(NODES, (*HELD, *never, FIRST, SECOND), foreign=foreign), PromiseBook()
    found = []
    for number in range(20):
        decide(now, ARRIVAL, NOW_S + number, book=book)
        found.append(kept_for(book))
    assert found[-1] == {"large-H100": ["a"], "large-L4": ["b"]}
    first = found.index(found[-1])
    assert found[first:] == [found[-1]] * (20 - first)


def test_easy_back_filling_has_one_reservation() -> None:
    """That is what it is: the first job in line has one, on whatever nodes."""
    book = PromiseBook()
    decided(FIRST, SECOND, book=book, config=PolicyConfig(policy="fifo-skip-easy", levels=()))
    assert kept_for(book) == {"large-H100": ["a"]}


def test_what_is_kept_idle_is_counted_for_each_promise() -> None:
    book = PromiseBook()
    plan = decided(FIRST, SECOND, book=book)
    assert {name: book.promise_by_job[name].idle for name in (FIRST.id, SECOND.id)} == {FIRST.id: 2, SECOND.id: 2}
    assert plan.wake_s is None or plan.wake_s > NOW_S
    decided(FIRST, SECOND, typed(gpu("done", 2), "L4"), book=taught(book, 60.0))
    assert {name: book.promise_by_job[name].idle for name in (FIRST.id, SECOND.id)} == {FIRST.id: 2, SECOND.id: 2}


def taught(book: PromiseBook, run_s: float) -> PromiseBook:
    for _ in range(100):
        book.run_times.add(FinishedRun("team", "", 2, run_s))
    return book


@pytest.mark.parametrize("config", [ARRIVAL, CODA], ids=["arrival", "coda"])
def test_in_between_a_job_starts_that_ends_before_the_promised_starts_on_nodes_that_it_may_use(
    config: PolicyConfig,
) -> None:
    """The node of `large-H100` is free later: who may go there only may run for longer, whoever may go to both not."""
    for run_s, product, expected in (
        (500.0, None, True),
        (9_000.0, None, False),
        (9_000.0, "L4", False),
        (9_000.0, "H100", True),
    ):
        limited = replace(gpu("new", 2), run_limit_s=run_s)
        new = limited if product is None else typed(limited, product)
        plan = decided(FIRST, SECOND, new, book=PromiseBook(), config=config)
        assert ("new" in started(plan)) is expected, (run_s, product)


def test_nobody_moves_to_nodes_that_are_kept_for_another_job() -> None:
    """A guest of the second job's node could only go to that of the first."""
    config = CODA
    guest = replace(ran(gpu("guest", 2), "b", for_s=500), resumable=True)
    now = world(NODES, (HELD[0], guest, FIRST, SECOND))
    plan = decide(now, config, NOW_S, book=PromiseBook())
    assert not [stop for stop in plan.stops if stop.cause is StopCause.MIGRATE]


@laws.law
@given(st.data(), st.sampled_from([laws.ARRIVAL, laws.CODA]), st.booleans())
def test_with_types_every_job_starts_and_no_promise_costs_more_than_its_price(
    data: st.DataObject, config: PolicyConfig, are_limited: bool
) -> None:
    products = st.sampled_from((None, "H100", "L4"))
    shapes = st.builds(lambda one, product: typed(one, product) if product else one, laws.SHAPES, products)
    play, start_s = laws.crowded(data, config, are_limited=are_limited, nodes=MANY, shapes=shapes)
    assert {one.id for now, _ in play.plans for one in now.jobs} == start_s.keys()
