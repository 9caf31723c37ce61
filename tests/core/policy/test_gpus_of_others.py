"""What the CPU array owns beside GPUs that pods outside Coda hold: as much as beside a training job's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import Job, Resources, World
from coda.policy import ArraysConfig, PolicyConfig
from tests.builders import job, node, resources, running, world

NOW_S = 1e6
CODA = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=4))
NODE = node("n", gpus=8, cores=48)
"""32 of its cores are the reserve of its GPUs, and 16 belong to CPU jobs."""


def bound(name: str, cores: float) -> Job:
    """A CPU job that may not borrow."""
    return replace(job(name, gpus=0, cores=cores, memory_gib=0, queued_s=NOW_S - 60), may_borrow=False)


def beside(others: Resources, *jobs: Job) -> World:
    return world((NODE,), jobs, foreign={"n": others})


def started(seen: World, cache: PlannerCache | None = None) -> dict[str, bool]:
    """Who starts, and whether it borrows."""
    decision = decide(seen, CODA, NOW_S, cache)
    assert not decision.stops
    return {str(start.job).split("/")[1]: start.borrows for start in decision.starts}


@pytest.mark.parametrize("cores", [0, 16, 32, 40])
@pytest.mark.parametrize("asked", [8, 16, 17])
def test_gpus_of_others_use_up_the_reserve_as_a_training_job_does(cores: int, asked: int) -> None:
    """CPU jobs that may not borrow owned nothing there, while cores were idle that no free GPU could need."""
    training = started(world((NODE,), [running(job("t", gpus=8, cores=cores, memory_gib=0), "n"), bound("a", asked)]))
    assert started(beside(resources(gpus=8, cores=cores, pods=8), bound("a", asked))) == training
    assert training == ({"a": False} if asked <= min(16, 48 - cores) else {})


@pytest.mark.parametrize(
    ("gpus", "cores", "owned"),
    [
        pytest.param(0, 10, 6, id="pods without GPUs use the CPU array's cores"),
        pytest.param(2, 2, 16, id="those of GPUs are of the reserve"),
        pytest.param(2, 10, 14, id="no more of them than are for these GPUs"),
        pytest.param(9, 40, 8, id="nor more GPUs than there are"),
    ],
)
def test_pods_of_others_use_the_reserve_of_their_own_gpus_only(gpus: int, cores: int, owned: int) -> None:
    others = resources(gpus=gpus, cores=cores)
    assert started(beside(others, bound("fits", owned))) == {"fits": False}
    assert started(beside(others, bound("large", owned + 1))) == {}


def test_what_a_training_job_holds_beyond_its_part_is_still_of_the_cpu_array() -> None:
    """Together with GPUs of others it uses more than the reserve, and no cores are free for the CPU array's jobs."""
    training = running(job("t", gpus=4, cores=30, memory_gib=0), "n")
    assert started(beside(resources(gpus=4, cores=16), training, bound("a", 2))) == {"a": False}


def test_planning_goes_on_as_pods_of_others_come_and_go() -> None:
    cache, waiting = PlannerCache(), bound("a", 8)
    assert started(beside(resources(cores=16), waiting), cache) == {}
    assert started(beside(resources(gpus=8, cores=16), waiting), cache) == {"a": False}
    assert started(beside(resources(gpus=1, cores=16), waiting), cache) == {}
    assert started(beside(resources(gpus=4, cores=16), waiting), cache) == {"a": False}


@given(
    gpus=st.integers(0, 8),
    cores=st.integers(0, 40),
    asked=st.lists(st.integers(1, 16), min_size=1, max_size=4),
)
def test_cpu_jobs_hold_no_more_than_their_own_when_the_pods_of_others_have_ended(
    gpus: int, cores: int, asked: list[int]
) -> None:
    """Such a job gives nothing back: training jobs that come to these GPUs find the whole reserve, and stop nobody."""
    names = [f"c{number}" for number in range(len(asked))]
    waiting = [bound(name, size) for name, size in zip(names, asked, strict=True)]
    begun = started(beside(resources(gpus=gpus, cores=cores, pods=gpus), *waiting))
    assert not any(begun.values())
    stay = [running(one, "n") for one in waiting if one.id.split("/")[1] in begun]
    gang = job("gang", gpus=8, cores=32, memory_gib=0, queued_s=NOW_S - 60)
    assert started(world((NODE,), [*stay, gang])) == {"gang": False}
