"""What the arrays of an ArrayQuota hold, lend, borrow and wait for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import Job, Node
from coda.model.constraints import NodeConstraints
from coda.model.world import ArrayQuota
from coda.nodes.array_use import MOST_CONSTRAINTS, ArrayUse, QuotaUse, Share, TenantLoans
from coda.policy import ArraysConfig
from tests.builders import job, node, running

BIG, SMALL = node("big", gpus=8, cores=32, labels={"gpu": "a100"}), node("small", gpus=4, cores=16)
NODES = (BIG, SMALL)
ALL = ArrayQuota(name="all", reserve_cores_per_gpu=2, large_gpus=8)
"""`big` is large. 16 of its 32 cores belong to the GPU array, and 8 of the 16 of `small`."""


def use_of(jobs: Iterable[Job], *quotas: ArrayQuota, nodes: tuple[Node, ...] = NODES) -> dict[str, QuotaUse]:
    use = ArrayUse(nodes, quotas or (ALL,), ArraysConfig())
    for one in jobs:
        use.add(one)
    for _ in use.add_up():
        pass
    return dict(use.use_by_quota)


def cpu(name: str, cores: int, *nodes: str, borrows: bool = False) -> Job:
    placed = running(job(name, gpus=0, cores=cores), *nodes)
    assert placed.placement is not None
    return replace(placed, placement=replace(placed.placement, borrows=borrows))


def test_an_idle_cluster_owns_everything_and_holds_nothing() -> None:
    use = use_of(())["all"]
    assert (use.nodes, use.large_gpus, use.small_gpus) == (2, Share(reserved=8), Share(reserved=4))
    assert (use.gpu_jobs_cpu_m, use.cpu_jobs_cpu_m) == (Share(reserved=24_000), Share(reserved=24_000))


def test_jobs_hold_what_is_theirs_or_borrow_it() -> None:
    jobs = [
        running(job("large", gpus=4, cores=20), "big"),  # 4 cores more than the reserve
        running(job("guest", gpus=2, cores=1), "big"),
        running(job("over", gpus=1, cores=1, replicas=4), "small", "small", "small", "small"),
        cpu("own", 6, "small"),
        cpu("borrower", 2, "small", borrows=True),
    ]
    use = use_of(jobs)["all"]
    assert use.large_gpus == Share(reserved=8, used=4, lent=2, borrowed=4)
    assert use.small_gpus == Share(reserved=4, used=0, lent=4, borrowed=2)
    assert use.gpu_jobs_cpu_m == Share(reserved=24_000, used=20_000, lent=2_000, borrowed=5_000)
    assert use.cpu_jobs_cpu_m == Share(reserved=24_000, used=6_000, lent=5_000, borrowed=2_000)
    assert use.excess_cpu_m == 0


def test_what_is_lent_is_told_by_tenant() -> None:
    """Of `small`, 8 cores are the GPU array's, 2 for each GPU; the GPU jobs hold 14."""
    jobs = [
        replace(running(job("a", gpus=2, cores=8), "small"), virtual_cluster="lab"),  # 4 beyond its part
        replace(running(job("b", gpus=1, cores=4), "small"), virtual_cluster="firm"),  # 2 beyond
        replace(running(job("c", gpus=1, cores=2), "small"), virtual_cluster="modest"),
        replace(cpu("d", 1, "small", borrows=True), virtual_cluster="firm"),
        replace(running(job("e", gpus=1, cores=9), "big"), virtual_cluster="lab"),  # within what `big` has for GPU jobs
    ]
    use = ArrayUse(NODES, (ALL,), ArraysConfig())
    for one in jobs:
        use.add(one)
    for _ in use.add_up():
        pass
    assert use.loans_by_tenant == {"lab": TenantLoans(4_000), "firm": TenantLoans(2_000, 1_000)}


def test_what_cpu_jobs_hold_after_their_array_shrank_is_said() -> None:
    shrunk = replace(ALL, reserve_cores_per_gpu=3)
    use = use_of([cpu("early", 10, "small"), cpu("other", 1, "big")], shrunk)["all"]
    assert use.excess_cpu_m == 6_000


def test_queued_jobs_wait_for_every_quota_with_a_node_that_they_accept() -> None:
    a100 = ArrayQuota(name="a100", selector={"gpu": "a100"})
    rest = ArrayQuota(name="rest", created="later")
    only_big = NodeConstraints(selector={"gpu": "a100"})
    jobs = [
        job("any", gpus=2, replicas=2),
        job("big", gpus=1, constraints=only_big),
        job("cpu", gpus=0, cores=3, constraints=only_big),
        job("nowhere", gpus=8, constraints=NodeConstraints(selector={"gpu": "h100"})),
    ]
    use = use_of(jobs, a100, rest)
    assert [use["a100"].large_gpus.waiting, use["rest"].large_gpus.waiting] == [4, 4]
    assert [use["a100"].small_gpus.waiting, use["rest"].small_gpus.waiting] == [1, 0]
    assert [use["a100"].cpu_jobs_cpu_m.waiting, use["rest"].cpu_jobs_cpu_m.waiting] == [3_000, 0]
    assert [use["a100"].nodes, use["rest"].nodes] == [1, 1]
    assert [use["a100"].shared_nodes, use["rest"].shared_nodes] == [{"big": "rest"}, {"big": "a100"}]


def test_ranks_that_ended_and_unknown_nodes_count_nowhere() -> None:
    gang = running(job("gang", gpus=1, cores=1, replicas=2), "small", "gone")
    assert use_of([replace(gang, gone=frozenset({0}))])["all"].small_gpus.used == 0
    assert use_of([gang])["all"].small_gpus.used == 1


def selecting(number: int) -> NodeConstraints:
    return NodeConstraints(selector={"number": str(number)})


class Counted(dict[str, str]):
    """Labels of a node that count how often they are looked at: a compiled core calls nothing that is patched."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)


def test_no_step_compares_many_nodes_and_all_steps_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may make thousands of pods that each select other nodes."""
    nodes = [replace(node(f"n{number}", gpus=8, cores=32), labels=Counted()) for number in range(2000)]
    use = ArrayUse(nodes, (ALL,), ArraysConfig())
    for number in range(2 * MOST_CONSTRAINTS):
        use.add(job(f"j{number}", gpus=0, cores=1, constraints=selecting(number)))
    monkeypatch.setattr(Counted, "looks", 0)
    before, most = 0, 0
    for _ in use.add_up():
        before, most = Counted.looks, max(most, Counted.looks - before)
    assert most <= 1000
    assert Counted.looks == MOST_CONSTRAINTS * len(nodes)


def test_what_is_beyond_the_bound_waits_for_every_quota_and_training_jobs_are_within() -> None:
    jobs = [
        job(f"cpu{number}", gpus=0, cores=1, constraints=selecting(number)) for number in range(MOST_CONSTRAINTS + 5)
    ]
    jobs += [job(f"more{number}", gpus=0, cores=1, constraints=selecting(0)) for number in range(3)]
    jobs += [job("train", gpus=2, constraints=selecting(-1))]
    use = use_of(jobs)["all"]
    assert use.cpu_jobs_cpu_m.waiting == 6_000  # 200 are compared, one of them the training job's
    assert use.small_gpus.waiting == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 8), st.sampled_from(("big", "small")), st.booleans()), max_size=8
    )
)
def test_what_one_array_lends_the_other_borrows(rows: list[tuple[int, int, str, bool]]) -> None:
    jobs = []
    for number, (gpus, cores, where, borrows) in enumerate(rows):
        placed = running(job(f"j{number}", gpus=gpus, cores=cores), where)
        assert placed.placement is not None
        jobs.append(replace(placed, placement=replace(placed.placement, borrows=borrows)))
    use = use_of(jobs)["all"]
    assert use.large_gpus.lent == use.small_gpus.borrowed
    assert use.small_gpus.lent == use.large_gpus.borrowed
    assert use.gpu_jobs_cpu_m.lent == use.cpu_jobs_cpu_m.borrowed
    assert use.cpu_jobs_cpu_m.lent == use.gpu_jobs_cpu_m.borrowed
    held = sum(gpus for gpus, *_ in rows)
    assert sum(share.used + share.lent for share in (use.large_gpus, use.small_gpus)) == held
