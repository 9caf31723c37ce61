"""What the CPU array owns beside GPUs that pods outside Coda hold: as much as beside a training job's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import NOTHING, Job, Resources, World
from coda.policy import ArraysConfig, PolicyConfig
from tests.builders import job, node, resources, running, world

NOW_S = 1e6
CODA = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=4))
NODE = node("n", gpus=8, cores=48)
"""32 of its cores are the reserve of its GPUs, and 16 belong to CPU jobs."""


def bound(name: str, cores: float) -> Job:
    """A CPU job that may not borrow."""
    return replace(job(name, gpus=0, cores=cores, memory_gib=0, queued_s=NOW_S - 60), may_borrow=False)


def beside(others: Resources, *jobs: Job, in_flight: Resources = NOTHING) -> World:
    return world((NODE,), jobs, foreign={"n": others}, in_flight={"n": in_flight} if in_flight != NOTHING else {})


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


@pytest.mark.parametrize(
    "in_flight",
    [
        pytest.param(resources(gpus=8, cores=0, pods=1), id="a foreign pod in flight, which counts on every node"),
        pytest.param(Resources(gpus=8), id="GPUs whose device plugin starts again"),
        pytest.param(Resources(gpus=3), id="some of them"),
    ],
)
def test_gpus_that_nobody_has_yet_use_up_no_reserve(in_flight: Resources) -> None:
    """The cores of DaemonSets counted as theirs. CPU jobs got them as their own on each node, and never gave them back:
    a gang of whole nodes found no cores when the pod had landed elsewhere, or the plugin was back."""
    daemons = resources(cores=10, pods=5)
    assert started(beside(daemons, bound("large", 7))) == {}
    assert started(beside(daemons, bound("large", 7), in_flight=in_flight)) == {}
    assert started(beside(daemons, bound("fits", 6), in_flight=in_flight)) == {"fits": False}
    notebooks = resources(gpus=4, cores=16, pods=4)
    assert started(beside(notebooks, bound("fits", 16), in_flight=Resources(gpus=4))) == {"fits": False}


def test_planning_goes_on_as_pods_pass_by() -> None:
    cache, waiting = PlannerCache(), bound("a", 8)
    for in_flight in (NOTHING, resources(gpus=8, pods=1), NOTHING, Resources(gpus=4), resources(gpus=1, cores=8)):
        assert started(beside(resources(cores=10), waiting, in_flight=in_flight), cache) == {}
    assert started(beside(resources(gpus=8, cores=10), waiting, in_flight=NOTHING), cache) == {"a": False}


def _whole(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


@given(
    gpus=_whole(8),
    cores=_whole(40),
    asked=st.lists(st.integers(1, 16), min_size=1, max_size=4),
    in_flight=st.one_of(
        st.just(NOTHING),
        st.builds(Resources, gpus=_whole(8)),  # of a node that is short
        st.builds(lambda gpus, cores: resources(gpus=gpus, cores=cores, pods=1), _whole(8), _whole(40)),
    ),
)
def test_cpu_jobs_hold_no_more_than_their_own_when_the_pods_of_others_have_ended(
    gpus: int, cores: int, asked: list[int], in_flight: Resources
) -> None:
    """Such a job gives nothing back: training jobs that come to these GPUs find the whole reserve, and stop nobody.

    Pods without GPUs stay, and those in flight went elsewhere."""
    names = [f"c{number}" for number in range(len(asked))]
    waiting = [bound(name, size) for name, size in zip(names, asked, strict=True)]
    begun = started(beside(resources(gpus=gpus, cores=cores, pods=gpus), *waiting, in_flight=in_flight))
    assert not any(begun.values())
    stay = [running(one, "n") for one in waiting if one.id.split("/")[1] in begun]
    daemons = 0 if gpus else cores
    gang = job("gang", gpus=8, cores=min(32, 48 - daemons), memory_gib=0, queued_s=NOW_S - 60)
    assert started(beside(resources(cores=daemons), *stay, gang)) == {"gang": False}
