"""How much is given back between arrays: what a job lacks, and nobody is stopped who is not needed for that."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache.array_capacity import ArrayCapacity
from coda.compiled import is_compiled
from coda.cycle import decide
from coda.model import Job
from coda.model.capacity import free_by_node
from coda.model.decision import StopCause
from coda.policy.arrays import reserved_cpu_m
from tests.builders import with_starts
from tests.core.policy.test_arrays import CODA, NODES, played

pytestmark = pytest.mark.heavy

law = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def held_on(name: str, job: Job) -> int:
    return job.placement.nodes.count(name) if job.placement is not None else 0


@law
@given(st.data())
def test_what_is_stopped_is_enough_and_nobody_less_would_be(data: st.DataObject) -> None:
    """The job starts where it was made room for; with any one of those stopped still there, a node of it lacks room."""
    plans = played(data, CODA).plans
    for (now, plan), (_, following) in pairwise(plans):
        if not plan.stops:
            continue
        job_by_id, started = {job.id: job for job in now.jobs}, {start.job: start for start in following.starts}
        free, by = free_by_node(with_starts(now, plan.starts, CODA, 0.0)), job_by_id[plan.stops[0].by]
        nodes = started[by.id].nodes
        for spared in plan.stops:
            stopped = [job_by_id[stop.job] for stop in plan.stops if stop is not spared]
            assert any(
                not (by.request * nodes.count(name)).fits_in(
                    sum((job.request * held_on(name, job) for job in stopped), free[name])
                )
                for name in set(nodes)
            )


@law
@given(st.data())
def test_the_gpu_arrays_cores_are_its_own_again_when_a_job_asks_for_them(data: st.DataObject) -> None:
    """By as much as belongs to it: of each node, all that CPU jobs have beyond their own part is of jobs that give it
    back. What a GPU job of the reserve's size lacks on a node with enough free GPUs is never more than that."""
    now = played(data, CODA).world()
    free = free_by_node(now)
    for one in NODES:
        reserve = reserved_cpu_m(one.allocatable, CODA.arrays.reserve_cores_per_gpu)
        by_gpu_jobs = sum(held_on(one.name, job) * job.request.cpu_m for job in now.jobs if job.request.gpus)
        lent = sum(
            held_on(one.name, job) * job.request.cpu_m
            for job in now.jobs
            if job.placement is not None and job.placement.borrows and not job.request.gpus
        )
        lacking = reserve - by_gpu_jobs - free[one.name].cpu_m
        assert lacking <= lent


@law
@given(st.data())
def test_borrowed_cores_are_taken_back_for_gpu_jobs_and_places_for_large_ones(data: st.DataObject) -> None:
    for now, plan in played(data, CODA).plans:
        job_by_id = {job.id: job for job in now.jobs}
        for stop in plan.stops:
            stopped, by = job_by_id[stop.job], job_by_id[stop.by]
            if stop.cause is StopCause.RECLAIM:
                assert not stopped.request.gpus
                assert stopped.placement is not None
                assert stopped.placement.borrows
                assert by.request.gpus
            else:
                assert stop.cause is StopCause.MIGRATE
                assert stopped.request.gpus * stopped.replicas < 4 <= by.request.gpus * by.replicas


@pytest.mark.skipif(is_compiled(), reason="what is compiled cannot be replaced")
@law
@given(st.data())
def test_to_count_free_gpus_before_places_are_looked_for_changes_no_decision(data: st.DataObject) -> None:
    play = played(data, CODA)
    for (now, _), now_s in zip(play.plans, play.times_s, strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrayCapacity, "may_leave", lambda *_: True)
            thorough = decide(now, CODA, now_s)
        assert decide(now, CODA, now_s) == thorough


@law
@given(st.data())
def test_a_job_is_migrated_only_when_another_node_has_its_gpus_free(data: st.DataObject) -> None:
    for now, plan in played(data, CODA).plans:
        moved = {stop.job for stop in plan.stops if stop.cause is StopCause.MIGRATE}
        for one in now.jobs:
            if one.id in moved:
                assert one.placement is not None
                free = free_by_node(now)
                elsewhere = sum(free[each.name].gpus for each in NODES if each.name not in one.placement.nodes)
                assert elsewhere >= one.request.gpus * one.replicas
