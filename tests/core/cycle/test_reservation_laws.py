"""The differential law: nodes that are kept from round to round are those that a walk over all nodes finds anew."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cache.world_index import WorldIndex
from coda.cycle import decide
from coda.cycle.reservation import overdue, reserve
from coda.model import Job, World
from coda.policy import PolicyConfig
from tests.builders import job, node, rack, running, with_starts, world
from tests.core.cache.test_world_index_laws import CONFIG, changed
from tests.core.cycle.plain_reservation import plain_order, plain_reservation
from tests.strategies import NOW_S, worlds

LIMIT_S = NOW_S - 1
LIMITED = replace(CONFIG, overtaking_limit_s=LIMIT_S)

law = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
configs = st.sampled_from([LIMITED, replace(LIMITED, policy="coda")])


def check_reservations(index: WorldIndex, now: World, now_s: float) -> int:
    """The order of those overdue, and what each waiting job would have kept, are as defined. How many have nodes."""
    assert [waiter.job for waiter in overdue(index, now_s)] == plain_order(index, now_s - LIMIT_S, now_s)
    found = 0
    for gang_class in index.queue.class_by_key.values():
        rank_class = index.rank_class(gang_class)
        rank_class.candidates.refresh()
        for waiter in gang_class.queued_jobs:
            reservation = reserve(index, waiter.job, rank_class)
            assert reservation == plain_reservation(index, now, waiter.job, rank_class)
            found += reservation is not None
    return found


@law
@given(worlds(), configs, st.data())
def test_nodes_are_kept_as_if_nobody_remembered_anything(now: World, config: PolicyConfig, data: st.DataObject) -> None:
    cache, now_s = PlannerCache(), NOW_S
    for step in range(data.draw(st.integers(2, 6))):
        plan = decide(now, config, now_s, cache)
        assert plan == decide(now, config, now_s)
        index = cache.index_for(now, config)
        check_reservations(index, now, now_s)
        cache.store(index)
        now = changed(data, now, plan, step)
        now_s += data.draw(st.sampled_from((0.0, 1.0)))


@pytest.mark.parametrize("policy", ["arrival", "coda"])
def test_many_rounds_keep_nodes_as_if_each_were_the_first(policy: str) -> None:
    """More jobs than there is room for, nodes that fail and come back."""
    rng = random.Random(policy)
    cache, config, kept = PlannerCache(), replace(LIMITED, policy=policy), 0
    now, now_s = world((*rack("a", 4), *rack("b", 4, gpus=4), *rack("c", 2, cores=20))), 0.0
    for number in range(300):
        now_s += 10.0
        now = replace(now, nodes=tuple(replace(one, schedulable=rng.random() < 0.97) for one in now.nodes))
        if len(now.jobs) < 24:
            now = replace(now, jobs=(*now.jobs, new_job(number, now_s, rng)))
        plan = decide(now, config, now_s, cache)
        index = cache.index_for(now, config)
        kept += check_reservations(index, now, now_s)
        cache.store(index)
        now = with_starts(now, plan.starts, config, now_s)
        ended = {*(stop.job for stop in plan.stops)}
        ended |= {one.id for one in now.jobs if one.placement and rng.random() < 0.02}
        now = replace(now, jobs=tuple(one for one in now.jobs if one.id not in ended))
    assert kept > 500


def test_a_holder_that_another_one_replaces_is_noticed() -> None:
    """What is free on `a` stays the same, but the job there began after the waiting one was overdue."""
    large = job("large", gpus=4)
    nodes = (node("a", gpus=4), node("b", gpus=4))
    early, late = (with_start(job(name, gpus=2), "a", at_s) for name, at_s in (("early", 0.0), ("late", NOW_S)))
    other = with_start(job("other", gpus=3), "b", 0.0)
    cache = PlannerCache()
    for holder, expected in ((early, {0}), (late, {1}), (early, {0})):
        now = world(nodes, (large, holder, other))
        decide(now, LIMITED, NOW_S, cache)
        index = cache.index_for(now, LIMITED)
        [gang_class] = index.queue.class_by_key.values()
        reservation = reserve(index, large, index.rank_class(gang_class))
        assert reservation is not None
        assert set(reservation.left_for_others) == expected
        cache.store(index)


def with_start(waiting: Job, name: str, at_s: float) -> Job:
    placed = running(waiting, name)
    assert placed.placement is not None
    return replace(placed, placement=replace(placed.placement, committed_s=at_s))


def new_job(number: int, now_s: float, rng: random.Random) -> Job:
    gpus = rng.choice((0, 1, 2, 4, 8))
    return job(
        f"j{number}",
        gpus=gpus,
        cores=rng.choice((1, 4, 12)),
        replicas=rng.choice((1, 1, 2, 3)) if gpus else 1,
        priority=rng.choice((0, 0, 1)),
        within=rng.choice((None, None, "rack")),
        queued_s=now_s,
    )
