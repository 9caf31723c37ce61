"""Laws of promises, on clusters played through with more jobs than fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache.queue import waits_since_s
from coda.model import Job, JobId, Node
from coda.policy import ArraysConfig, PolicyConfig
from tests.builders import job, node
from tests.core.play import Play

pytestmark = pytest.mark.heavy

PATIENCE_S, PRICE, STEP_S = 100.0, 0.5, 10.0
RUN_S = 50.0
"""R: no job may run longer."""
ARRIVAL = PolicyConfig(promise_patience_s=PATIENCE_S, promise_price=PRICE, levels=())
CODA = replace(ARRIVAL, policy="coda", arrays=ArraysConfig(reserve_cores_per_gpu=2, large_share=0.5))
NODES = (node("a", gpus=4, cores=12), node("b", gpus=4, cores=12))
SHAPES = st.builds(
    lambda gpus, cores, replicas, user, resumable: replace(
        job("x", gpus=gpus, cores=cores, replicas=replicas if gpus else 1, memory_gib=0, user=user),
        resumable=resumable,
    ),
    st.sampled_from((0, 1, 1, 2, 2, 3, 4)),
    st.integers(1, 12),
    st.sampled_from((1, 1, 1, 2)),
    st.sampled_from(("ann", "bob")),
    st.sampled_from((False, False, False, True)),
)
law = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def crowded(
    data: st.DataObject,
    config: PolicyConfig,
    *,
    are_limited: bool,
    nodes: tuple[Node, ...] = NODES,
    shapes: st.SearchStrategy[Job] = SHAPES,
) -> tuple[Play, dict[JobId, float]]:
    """More jobs come than fit; each runs for up to `RUN_S`, and says so if `are_limited`. And when each started first.

    After 25 steps nobody comes any more. What every promise has spent is within its price in each step."""
    play, start_s, left_s = Play(config, nodes), dict[JobId, float](), dict[JobId, float]()
    step = 0
    while step < 25 or play.job_by_id:
        play.now_s += STEP_S
        for name in play.running():
            left_s[name] -= STEP_S
            if left_s[name] <= 0:
                play.end(name)
        for number in range(data.draw(st.integers(0, 3)) if step < 25 else 0):
            one = replace(data.draw(shapes), id=JobId(f"team/j{step}-{number}"), uid=f"{step}-{number}")
            play.submit(replace(one, run_limit_s=RUN_S) if are_limited else one)
            left_s[one.id] = data.draw(st.sampled_from((10.0, RUN_S)))
        play.settle()
        for promise in play.book.promise_by_job.values():
            late = promise.idle * STEP_S  # a cycle comes every 10 s here, not when the price is used up
            assert promise.spent <= promise.price(play.now_s) + late
        for name in play.running():
            start_s.setdefault(name, play.now_s)
        step += 1
        assert step < 2000
    return play, start_s


@law
@given(st.data(), st.sampled_from([ARRIVAL, CODA]), st.booleans())
def test_every_job_starts_and_no_promise_costs_more_than_its_price(
    data: st.DataObject, config: PolicyConfig, are_limited: bool
) -> None:
    play, start_s = crowded(data, config, are_limited=are_limited)
    assert {one.id for now, _ in play.plans for one in now.jobs} == start_s.keys()


@law
@given(st.data())
def test_the_kth_in_line_starts_within_the_bound_where_the_longest_rest_is_known(data: st.DataObject) -> None:
    """At most max(W, 2 R / p) + k R after it came, in steps of 10 s: k - 1 that waited for longer waited then."""
    play, start_s = crowded(data, ARRIVAL, are_limited=True)
    bound_s = max(PATIENCE_S, 2 * RUN_S / PRICE)
    came_s = {one.id: one.queued_s for now, _ in play.plans for one in now.jobs}
    for name, came in came_s.items():
        ahead: set[JobId] = set()
        for (now, _), now_s in zip(play.plans, play.times_s, strict=True):
            if came + bound_s <= now_s < start_s[name]:
                ahead |= {
                    one.id for one in now.jobs if not one.placement and (waits_since_s(one), one.id) < (came, name)
                }
        assert start_s[name] <= came + bound_s + (len(ahead) + 1) * (RUN_S + STEP_S)
