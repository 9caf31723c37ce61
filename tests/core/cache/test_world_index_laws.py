"""The differential law: a decision that remembers equals one that does not, over worlds that change in every way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cache.queue import waiting_jobs
from coda.cycle import decide
from coda.model import Decision, Job, JobId, Node, Resources, World
from coda.model.decision import Start
from coda.policy import Level, PolicyConfig
from coda.promises import PromiseBook
from coda.snapshots import VersionedMap
from tests.builders import HOST_LABEL, RACK_LABEL, job, node, rack, resources, running, with_starts, world
from tests.strategies import NOW_S, ZONE_LABEL, array_quotas, jobs, nodes, quotas, tenants, worlds

pytestmark = pytest.mark.heavy

CONFIG = PolicyConfig(levels=(Level("zone", ZONE_LABEL), Level("rack", RACK_LABEL), Level("node", HOST_LABEL)))

law = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Memory:
    """What a planner remembers from cycle to cycle. Without the book, what the index keeps would not be asked again."""

    def __init__(self) -> None:
        self._cache = PlannerCache()
        self._book = PromiseBook()

    def decided(self, now: World, now_s: float, plain: World | None = None) -> Decision:
        """Decide, and check that one who remembers only promises decides the same of this world, or of `plain`."""
        book = self._book.copied()
        plan = decide(now, CONFIG, now_s, self._cache, book=self._book)
        assert plan == decide(plain or now, CONFIG, now_s, book=book)
        return plan


def changed(data: st.DataObject, before: World, plan: Decision, step: int) -> World:
    """The world after one more change; values that did not change stay the same objects, as the caches keep them."""
    change = data.draw(st.sampled_from((with_other_jobs, with_other_nodes, with_other_use, unchanged)))
    return change(data, before, plan, step)


def unchanged(data: st.DataObject, before: World, plan: Decision, step: int) -> World:
    return before


def with_other_jobs(data: st.DataObject, before: World, plan: Decision, step: int) -> World:
    change = data.draw(st.sampled_from(("commit", "commit", "new", "end", "save", "shuffle")))
    if change == "commit":
        started = data.draw(st.lists(st.sampled_from(plan.starts), unique=True)) if plan.starts else []
        return with_starts(before, started, CONFIG, NOW_S)
    if change == "new":
        names = tuple(node.name for node in before.nodes)
        new: Job = data.draw(jobs(f"j{data.draw(st.integers(0, 9))}", names, preferring=True))
        return replace(before, jobs=(*(job for job in before.jobs if job.id != new.id), new))
    if change == "end" and before.jobs:
        ended = data.draw(st.sampled_from(before.jobs))
        return replace(before, jobs=tuple(job for job in before.jobs if job is not ended))
    if change == "save" and before.jobs:
        saving = data.draw(st.sampled_from(before.jobs))
        saved = replace(saving, resumable=True, saved_s=data.draw(st.sampled_from((0.0, NOW_S - 50.0, NOW_S))))
        return replace(before, jobs=tuple(saved if job is saving else job for job in before.jobs))
    return replace(before, jobs=tuple(data.draw(st.permutations(before.jobs))), nodes=before.nodes[::-1])


def with_other_nodes(data: st.DataObject, before: World, plan: Decision, step: int) -> World:
    change = data.draw(st.sampled_from(("state", "all of it", "gone", "new")))
    if change == "new":
        return replace(before, nodes=(*before.nodes, data.draw(nodes(f"m{step}"))))
    if change == "gone":
        return replace(before, nodes=before.nodes[1:] or before.nodes)
    old = data.draw(st.sampled_from(before.nodes))
    other: Node = data.draw(nodes(old.name))
    if change == "state":
        other = replace(other, labels=old.labels)
    return replace(before, nodes=tuple(other if node is old else node for node in before.nodes))


def with_other_use(data: st.DataObject, before: World, plan: Decision, step: int) -> World:
    change = data.draw(st.sampled_from(("used", "in flight", "nothing in flight", "quotas", "tenants", "arrays")))
    amounts = st.builds(resources, gpus=st.integers(0, 2), cores=st.integers(0, 3), pods=st.integers(0, 1))
    if change == "quotas":
        return replace(before, quotas=tuple(data.draw(quotas(f"q{n}")) for n in range(data.draw(st.integers(0, 2)))))
    if change == "tenants":
        return replace(before, virtual_clusters=data.draw(tenants()))
    if change == "arrays":
        return replace(before, array_quotas=data.draw(array_quotas()))
    if change == "nothing in flight":
        return replace(before, in_flight={})
    more = {data.draw(st.sampled_from((*(node.name for node in before.nodes), "gone"))): data.draw(amounts)}
    return replace(before, used={**before.used, **more}) if change == "used" else replace(before, in_flight=more)


@law
@given(worlds(preferring=True), st.data())
def test_what_was_decided_before_changes_no_decision(world: World, data: st.DataObject) -> None:
    memory, now_s = Memory(), NOW_S
    for step in range(data.draw(st.integers(2, 6))):
        plan = memory.decided(world, now_s)
        world = changed(data, world, plan, step)
        now_s += data.draw(st.sampled_from((0.0, 1.0)))


@settings(law, max_examples=50)
@given(worlds(preferring=True), st.data())
def test_a_world_kept_in_blocks_is_decided_like_any_other(world: World, data: st.DataObject) -> None:
    memory, jobs, used = Memory(), VersionedMap[JobId, Job](), VersionedMap[str, Resources]()
    for step in range(data.draw(st.integers(2, 6))):
        keep(jobs, {job.id: job for job in world.jobs})
        keep(used, world.used)
        plan = memory.decided(replace(world, jobs=jobs.roster(), used=used.table()), NOW_S, plain=world)
        world = changed(data, world, plan, step)


def keep(shelf: VersionedMap[Any, Any], values: Mapping[Any, Any]) -> None:
    """Make the shelf hold these values, and nothing else."""
    for key in [key for key in shelf.table() if key not in values]:
        shelf.drop(key)
    for key, value in values.items():
        if shelf.get(key) is not value:
            shelf.put(key, value)


@law
@given(worlds())
def test_jobs_of_one_shape_are_decided_as_if_each_were_asked_alone(world: World) -> None:
    """The slow and obvious opposite of lines and shapes: one job after the other, each in a world of its own."""
    plan = decide(world, CONFIG, NOW_S)
    waiting = waiting_jobs(world)
    alone = replace(world, jobs=tuple(job for job in world.jobs if job not in waiting))
    # Pods of dropped plans that are still there count even while their job waits.
    leftovers = {job.id: job for job in waiting if job.unbound}
    starts: list[Start] = []
    for one in waiting:
        others = tuple(replace(job, not_before_s=NOW_S + 1) for job in leftovers.values() if job is not one)
        asked = replace(alone, jobs=(*alone.jobs, *others, one))
        found = decide(asked, CONFIG, NOW_S).starts
        starts += found
        alone = with_starts(replace(alone, jobs=(*alone.jobs, one)), found, CONFIG, NOW_S) if found else alone
    assert plan.starts == tuple(starts)


@law
@given(worlds(), st.integers(0, 4))
def test_fewer_explanations_are_the_first_ones(world: World, count: int) -> None:
    plan = decide(world, CONFIG, NOW_S)
    assert decide(world, CONFIG, NOW_S, explain=count) == replace(plan, refusals=plan.refusals[:count])


def test_a_thousand_rounds_of_starts_and_ends_are_decided_alike() -> None:
    """Long enough for journals to drop what nobody can ask for any more."""
    cluster = (*rack("a", 4), *rack("b", 4), node("c"))
    kinds = [
        job(gpus=gpus, replicas=replicas, cores=cores)
        for gpus in (1, 4, 8)
        for replicas in (1, 2, 3)
        for cores in (1, 5)
    ]
    memory, now = Memory(), world(cluster)
    for number in range(1000):
        come = replace(
            kinds[number % len(kinds)], id=JobId(f"team/j{number}"), uid=f"u{number}", queued_s=float(number)
        )
        now = replace(now, jobs=(*now.jobs, come))
        plan = memory.decided(now, NOW_S)
        now = with_starts(now, plan.starts, CONFIG, NOW_S)
        placed = [job for job in now.jobs if job.placement]
        if number % 3 or len(now.jobs) > 30:
            now = replace(now, jobs=tuple(job for job in now.jobs if job not in placed[:2]))


@pytest.mark.parametrize("broken", [None, "nodes"])
def test_a_round_that_raised_is_forgotten(broken: Any) -> None:
    cache = PlannerCache()
    good = world([node("n1")], [job("a", gpus=8), running(job("b", gpus=8), "n1")])
    decide(good, CONFIG, NOW_S, cache)
    with pytest.raises((TypeError, AttributeError)):
        decide(replace(good, jobs=(broken,)), CONFIG, NOW_S, cache)
    assert decide(good, CONFIG, NOW_S, cache) == decide(good, CONFIG, NOW_S)
