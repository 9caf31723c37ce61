"""Jobs and pods are watched apart: nobody is stopped for pods that are not seen yet, or seen too long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cache import PlannerCache
from coda.cycle import decide, decide_around
from coda.cycle.seats.sharers import may_stop
from coda.model import Decision, Job
from coda.model.job import Wish
from coda.model.resources import Resources
from coda.model.world import VirtualCluster, World
from coda.policy import ArraysConfig, PolicyConfig
from coda.policy.config import FairShareConfig
from coda.policy.core_loans import spare_cores
from coda.promises import PromiseBook
from tests.builders import job, node, opportunistic, resources, running, seated, world

NOW_S = 10_000.0
CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(large_share=0.5))
SRTF = PolicyConfig(policy="srtf", levels=())
OWNERS = PolicyConfig(policy="coda", fair_share=FairShareConfig(min_runtime_s=0))
PROMISES = PolicyConfig(levels=(), promise_patience_s=1.0, promise_price=0.0)
TENANTS = (VirtualCluster(name="lab", gpus=8), VirtualCluster(name="firm", gpus=8))


def half_seen(one: Job) -> Job:
    """The running job, of whose pods only the first is seen."""
    return replace(one, bound=frozenset(range(one.replicas - 1)))


def stopped(plan: Decision) -> list[str]:
    return [stop.job for stop in plan.stops]


def borrowing(one: Job) -> Job:
    assert one.placement is not None
    return replace(one, placement=replace(one.placement, borrows=True))


BORROWER = running(job("held", replicas=2, gpus=0, cores=24), "n1", "n2")
LONG = replace(running(job("held", replicas=2, gpus=8, resumable=True), "n1", "n2"), remaining_s=900.0, as_of_s=NOW_S)
LENT = running(job("held", replicas=2, gpus=8, virtual_cluster="lab"), "n1", "n2")
SMALL = running(job("held", replicas=2, gpus=1, resumable=True), "n1", "n2")


@pytest.mark.parametrize(
    ("config", "held", "waiting"),
    [
        pytest.param(CODA, SMALL, job("large", gpus=8), id="a guest of the large jobs' nodes"),
        pytest.param(CODA, borrowing(BORROWER), job("new", gpus=8, cores=30), id="a CPU job on borrowed cores"),
        pytest.param(SRTF, LONG, replace(job("new", gpus=8), remaining_s=5.0), id="a job that goes later"),
        pytest.param(OWNERS, LENT, job("own", gpus=8, virtual_cluster="firm"), id="a gang on lent GPUs"),
        pytest.param(PROMISES, SMALL, job("promised", gpus=8), id="a small job, for one that was promised a start"),
    ],
)
def test_a_gang_is_stopped_only_once_all_its_pods_are_seen_bound(config: PolicyConfig, held: Job, waiting: Job) -> None:
    """Before, what its unseen ranks have would count as free from the order on."""
    nodes = (node("n1"), node("n2"), *(node(f"small-{number}", gpus=4) for number in range(4)))
    cache, book = PlannerCache(), PromiseBook()
    for seen, expected in ((half_seen(held), []), (held, [held.id]), (half_seen(held), [])):
        now = world(nodes, [seen, waiting], virtual_clusters=TENANTS if config is OWNERS else ())
        assert stopped(decide(now, config, NOW_S, cache, book=book)) == expected


def test_an_opportunistic_job_and_lent_cores_are_told_to_go_once_all_pods_are_seen_bound() -> None:
    seats = seated(opportunistic(job("seats", replicas=2)), ("n1", 0), ("n2", 0))
    assert [may_stop(half_seen(seats)), may_stop(seats)] == [False, True]
    tuned = replace(running(job("tuned", replicas=2, cores=9), "n1", "n2"), tunable=True)
    assert [spare_cores(half_seen(tuned), 4), spare_cores(tuned, 4)] == [0, 5]


def test_a_rank_that_has_ended_was_seen() -> None:
    seats = seated(opportunistic(job("seats", replicas=2)), ("n1", 0), ("n2", 0))
    assert may_stop(replace(seats, gone=frozenset({1})))


@pytest.mark.parametrize(
    ("node_is_open", "expected"),
    [
        pytest.param(True, [], id="its old pod is seen for a moment longer"),
        pytest.param(False, ["team/guest"], id="it may be seen for long where the node takes no pods"),
    ],
)
def test_a_job_that_waits_again_stops_nobody_where_its_old_pods_were(node_is_open: bool, expected: list[str]) -> None:
    """The operator saw n1's pod gone. The guest on n2 could go on elsewhere, and leave n2 to the job."""
    nodes = (node("n1", schedulable=node_is_open), node("n2"), *(node(f"small-{n}", gpus=4) for n in range(4)))
    again = replace(job("again", gpus=8, attempt=2), ending=("n1",))
    guest = running(job("guest", gpus=2, resumable=True), "n2")
    now = world(nodes, [guest, again], foreign={"n1": again.request})
    plan = decide_around({}, now, CODA, NOW_S, book=PromiseBook())
    assert (stopped(plan), plan.starts) == (expected, ())
    gone = world(nodes, [guest, replace(again, ending=())])
    assert bool(decide_around({}, gone, CODA, NOW_S).starts) == node_is_open


def test_old_pods_of_another_job_spare_nobody() -> None:
    """What they leave goes to that other job: it waits as well, and comes first."""
    nodes = (node("n1"), node("n2"), *(node(f"small-{n}", gpus=4) for n in range(4)))
    other = replace(job("other", gpus=8, attempt=2), ending=("n1",), not_before_s=NOW_S + 1.0)
    guest = running(job("guest", gpus=2, resumable=True), "n2")
    now = world(nodes, [guest, other, job("new", gpus=8)], foreign={"n1": other.request})
    assert stopped(decide_around({}, now, CODA, NOW_S)) == [guest.id]


@pytest.mark.parametrize(
    ("config", "held", "waiting"),
    [
        pytest.param(CODA, running(job("held", gpus=2, resumable=True), "n1"), job("large", gpus=8), id="a guest"),
        pytest.param(
            CODA,
            borrowing(running(job("held", gpus=0, cores=40), "n1")),
            job("new", gpus=8, cores=30),
            id="borrowed cores",
        ),
        pytest.param(
            SRTF,
            replace(running(job("held", gpus=8, resumable=True), "n1"), remaining_s=900.0, as_of_s=NOW_S),
            replace(job("new", gpus=8), remaining_s=5.0),
            id="a job that goes later",
        ),
    ],
)
def test_whoever_fits_elsewhere_starts_while_a_job_waits_for_what_is_free_in_a_moment(
    config: PolicyConfig, held: Job, waiting: Job
) -> None:
    """A device plugin may be away for two minutes: its node's GPUs are there, and nobody may have them yet."""
    nodes = (node("n1"), node("n2"), *(node(f"small-{number}", gpus=4) for number in range(4)))
    small = [replace(job(f"small-{number}"), remaining_s=500.0) for number in range(3)]
    cache, book = PlannerCache(), PromiseBook()
    now = world(nodes, [held, replace(waiting, queued_s=1.0), *small])
    assert stopped(decide(replace(now, in_flight={"n2": resources(gpus=8)}), config, NOW_S, cache, book=book))
    for now_s, expected in ((NOW_S, []), (NOW_S + 4.9, []), (NOW_S + 5.0, small), (NOW_S + 120.0, small)):
        plan = decide_around({"n2": resources(gpus=8)}, now, config, now_s, cache, book)
        assert (stopped(plan), sorted(start.job for start in plan.starts)) == ([], [one.id for one in expected])
        assert expected or plan.wake_s == NOW_S + 5.0
    (start, *_) = decide_around({}, now, config, NOW_S, cache, book).starts
    assert (start.job, start.nodes) == (waiting.id, ("n2",))
    again = decide_around({"n2": resources(gpus=8)}, now, config, NOW_S + 200.0, cache, book)
    assert (again.starts, again.wake_s) == ((), NOW_S + 205.0)
    stepped = decide_around({"n2": resources(gpus=8)}, now, config, NOW_S - 3600.0, cache, book)
    assert (stepped.starts, stepped.wake_s) == ((), NOW_S - 3595.0)  # the clock was put back


def waits_for_a_moment(now: World, held_back: dict[str, Resources]) -> Decision:
    """What is decided once jobs have waited for five seconds for what is held back."""
    book = PromiseBook()
    first = decide_around(held_back, now, CODA, NOW_S, book=book)
    assert (first.starts, first.stops) == ((), ())
    return decide_around(held_back, now, CODA, NOW_S + 5.0, book=book.copied())


def test_of_several_that_wait_for_what_is_free_in_a_moment_none_holds_up_the_others() -> None:
    """Each would stop another job in its own turn."""
    nodes = (*(node(f"n{number}") for number in range(1, 7)), node("small", gpus=4))
    borrowers = [borrowing(running(job(f"held-{number}", gpus=0, cores=40), f"n{number}")) for number in (1, 2, 3)]
    large = [replace(job(f"large-{n}", gpus=8, cores=30 + n), queued_s=float(n)) for n in range(3)]  # three classes
    now = world(nodes, [*borrowers, *large, job("small")])
    held_back = {name: resources(gpus=8) for name in ("n4", "n5", "n6")}
    plan = waits_for_a_moment(now, held_back)
    assert (stopped(plan), [start.job for start in plan.starts]) == ([], ["team/small"])


def test_a_wish_for_which_another_stops_than_in_a_moment_holds_nobody_up() -> None:
    """Of 16 cores 4 are free in a moment: then 12 are enough."""
    wish = Wish(sequence=1, cores=20, since_s=NOW_S, deadline_s=NOW_S + 60.0)
    tuned = replace(running(job("tuned", gpus=1, cores=4), "n1"), tunable=True, wish=wish)
    borrowers = [borrowing(running(job(f"of-{cores}", gpus=0, cores=cores), "n1")) for cores in (12, 20)]
    now = world((node("n1", cores=40), node("n2")), [tuned, *borrowers, job("small", cores=40)])
    plan = waits_for_a_moment(now, {"n1": resources(cores=4)})
    assert (stopped(plan), plan.denials, plan.postponed) == ([], (), ("team/tuned",))
    assert [start.job for start in plan.starts] == ["team/small"]
