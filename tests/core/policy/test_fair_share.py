"""Fair shares: the published example, weights, and whose turn it is; what DRF promises is in `test_fairness_laws`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import decide
from coda.model import Job, Phase, Resources
from coda.policy import PolicyConfig
from tests.builders import job, node, resources, running, world

Demand = tuple[int, int]
"""Cores and GiB of one task."""


def tasks(user: str, demand: Demand, count: int, *, first: int = 0) -> list[Job]:
    return [
        job(f"{user}-{number:03d}", user=user, gpus=0, cores=demand[0], memory_gib=demand[1])
        for number in range(first, first + count)
    ]


def shared(capacity: Demand, waiting: list[Job], *, weights: dict[str, float] | None = None) -> Counter[str]:
    """How many tasks each user starts on one node under true DRF."""
    now = world([node("n", gpus=0, cores=capacity[0], memory_gib=capacity[1], pods=9999)], waiting, weights=weights)
    user_by_job = {one.id: one.user for one in waiting}
    plan = decide(now, PolicyConfig(policy="drf-multi"), 0.0)
    return Counter(user_by_job[start.job] for start in plan.starts)


def test_the_example_of_the_paper() -> None:
    """9 CPUs, 18 GB; tasks of <1 CPU, 4 GB> and <3 CPUs, 1 GB>: three and two start. Source: DRF, section 4.1."""
    assert shared((9, 18), [*tasks("a", (1, 4), 9), *tasks("b", (3, 1), 9)]) == {"a": 3, "b": 2}


def test_a_user_of_twice_the_weight_gets_twice_the_share() -> None:
    waiting = [*tasks("a", (1, 1), 20), *tasks("b", (1, 1), 20)]
    assert shared((9, 9), waiting, weights={"a": 2.0}) == {"a": 6, "b": 3}


def test_pods_that_run_on_after_their_job_or_attempt_count_for_its_user() -> None:
    """Else whoever lets a job end slowly has its GPUs, and the next job's besides."""
    ended = replace(job("ended", user="a", gpus=4, phase=Phase.FAILED), ending=("n1",))
    again = replace(job("again", user="b", gpus=2, attempt=2), ending=("n2",))
    waiting = [job(f"{user}-next", user=user, gpus=8) for user in "abc"]
    nodes, foreign = [node("n1"), node("n2"), node("n3")], {"n1": resources(gpus=4), "n2": resources(gpus=8)}
    plan = decide(world(nodes, [ended, again, *waiting], foreign=foreign), PolicyConfig(policy="drf"), 0.0)
    assert plan.starts[0].job == "team/c-next"


def test_codas_drf_baseline_starves_the_cpu_jobs_of_gpu_users() -> None:
    holder = running(job("training", user="a", gpus=1, cores=1), "n")
    waiting = [*tasks("a", (1, 1), 1), *tasks("b", (1, 1), 9)]
    now = world([node("n", gpus=1, cores=9)], [holder, *waiting])
    drf = {start.job for start in decide(now, PolicyConfig(policy="drf"), 0.0).starts}
    assert drf == {one.id for one in waiting if one.user == "b"} - {"team/b-008"}


@pytest.mark.parametrize("cores", [0, 1])
def test_cpu_jobs_under_coda_share_memory_too(cores: int) -> None:
    """Whoever takes all memory with few cores, or none, would always have the smallest share of cores."""
    waiting = [*tasks("a", (cores, 100), 9), *tasks("b", (8, 100), 9)]
    plan = decide(world([node("n", cores=64, memory_gib=512)], waiting), PolicyConfig(policy="coda"), 0.0)
    user_by_job = {one.id: one.user for one in waiting}
    assert Counter(user_by_job[start.job] for start in plan.starts) == {"a": 3, "b": 2}


users = st.fixed_dictionaries({"a": st.tuples(st.integers(1, 4), st.integers(1, 4))}).flatmap(
    lambda one: st.fixed_dictionaries(
        {"a": st.just(one["a"]), "b": st.tuples(st.integers(1, 4), st.integers(1, 4)), "c": st.just((2, 1))}
    )
)
capacities = st.tuples(st.integers(15, 30), st.integers(15, 30))


def share(demand: Demand, capacity: Demand) -> float:
    return max(demand[0] / capacity[0], demand[1] / capacity[1])


def useful(demand: Demand, has: Demand) -> int:
    return min(has[0] // demand[0], has[1] // demand[1])


def bundle(demand: Demand, count: int) -> Demand:
    return demand[0] * count, demand[1] * count


@settings(max_examples=30, deadline=None)
@given(users, capacities)
def test_each_start_goes_to_the_smallest_share_that_fits(users: dict[str, Demand], capacity: Demand) -> None:
    waiting = [one for user, demand in users.items() for one in tasks(user, demand, 30)]
    job_by_id = {one.id: one for one in waiting}
    plan = decide(
        world([node("n", gpus=0, cores=capacity[0], memory_gib=capacity[1], pods=9999)], waiting),
        PolicyConfig(policy="drf-multi"),
        0.0,
    )
    free, got = resources(cores=capacity[0], memory_gib=capacity[1], pods=9999), Counter[str]()
    for start in plan.starts:
        one = job_by_id[start.job]
        shares = {user: got[user] * share(demand, capacity) for user, demand in users.items()}
        able = [user for user, demand in users.items() if request(demand).fits_in(free)]
        assert shares[one.user] == pytest.approx(min(shares[user] for user in able))
        got[one.user] += 1
        free = free - one.request


def request(demand: Demand) -> Resources:
    return resources(cores=demand[0], memory_gib=demand[1], pods=1)
