"""Who is stopped for whom under the policies that preempt: the shortest first, the least served first, own quotas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.model import Job
from coda.model.decision import StopCause
from coda.model.world import VirtualCluster
from coda.policy import ArraysConfig, Component, PolicyConfig
from coda.policy.preemption_rules import lost_work
from tests.builders import job, node, rack, running, world

NOW_S = 10_000.0
NODES = (node("a", gpus=4, cores=8), node("b", gpus=4, cores=8))
TENANTS = (VirtualCluster(name="lab", gpus=4), VirtualCluster(name="firm", gpus=4))
SRTF, LAS, YARN, CODA = (
    PolicyConfig(policy=name, levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=1, large_share=0.5))
    for name in ("srtf", "tiresias-las", "yarn-cs-preempt", "coda")
)


def gpu(
    name: str,
    gpus: int,
    *,
    left_s: float | None = None,
    served_s: float = 0.0,
    of: str = "",
    cores: int = 1,
    replicas: int = 1,
) -> Job:
    built = job(name, gpus=gpus, cores=cores, replicas=replicas, memory_gib=0, virtual_cluster=of, resumable=True)
    return replace(built, remaining_s=left_s, served_s=served_s, as_of_s=NOW_S, queued_s=NOW_S)


def ran(built: Job, *nodes: str, for_s: float = 0.0) -> Job:
    """The job after so many more seconds on these nodes."""
    placed = running(built, *nodes)
    assert placed.placement is not None
    began_s = NOW_S - for_s
    return replace(placed, as_of_s=began_s, placement=replace(placed.placement, committed_s=began_s))


def stops(config: PolicyConfig, *jobs: Job) -> dict[str, str]:
    """Who is stopped, and for whom."""
    plan = decide(world(NODES, jobs, virtual_clusters=TENANTS), config, NOW_S)
    assert {stop.cause for stop in plan.stops} <= {StopCause.PREEMPT}
    return {stop.job.split("/")[1]: stop.by.split("/")[1] for stop in plan.stops}


def moved(config: PolicyConfig, *jobs: Job) -> dict[str, str]:
    """Who moves, and for whom."""
    plan = decide(world(NODES, jobs), config, NOW_S)
    assert {stop.cause for stop in plan.stops} <= {StopCause.MIGRATE}
    return {stop.job.split("/")[1]: stop.by.split("/")[1] for stop in plan.stops}


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param(
            [ran(gpu("long", 4, left_s=900), "a"), ran(gpu("longer", 4, left_s=999), "b"), gpu("new", 4, left_s=10)],
            {"longer": "new"},
            id="whoever has most left goes",
        ),
        pytest.param(
            [ran(gpu("x", 4, left_s=900), "a"), ran(gpu("y", 4, left_s=999), "b"), gpu("new", 4, left_s=999)],
            {},
            id="nobody with no more left",
        ),
        pytest.param(
            [ran(gpu("x", 4, left_s=900), "a", for_s=890), ran(gpu("y", 4, left_s=9), "b"), gpu("new", 4, left_s=20)],
            {},
            id="what it ran already counts",
        ),
        pytest.param(
            [ran(gpu("x", 4), "a"), ran(gpu("y", 4, left_s=999), "b"), gpu("new", 4, left_s=20)],
            {"x": "new"},
            id="unknown counts as most",
        ),
        pytest.param([ran(gpu("x", 4), "a"), ran(gpu("y", 4), "b"), gpu("new", 4)], {}, id="unknown stops nobody"),
        pytest.param(
            [
                ran(gpu("x", 1, left_s=999), "a"),
                ran(gpu("y", 3, left_s=900), "a"),
                ran(gpu("z", 4, left_s=50), "b"),
                gpu("new", 3, left_s=5),
            ],
            {"y": "new"},
            id="whoever is not needed is spared",
        ),
        pytest.param(
            [ran(gpu("x", 4, left_s=999, replicas=2), "a", "b"), gpu("new", 1, left_s=5, replicas=2)],
            {"x": "new"},
            id="gangs go whole",
        ),
        pytest.param(
            [ran(gpu("x", 4, left_s=999), "a"), ran(gpu("y", 4, left_s=5), "b"), gpu("new", 4, left_s=10, replicas=2)],
            {},
            id="nobody where even all would be too few",
        ),
        pytest.param([ran(gpu("x", 4, left_s=999), "a"), gpu("new", 4, left_s=10)], {}, id="nobody if there is room"),
    ],
)
def test_who_is_stopped_for_the_shorter_job(jobs: list[Job], expected: dict[str, str]) -> None:
    assert stops(SRTF, *jobs) == expected


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param(
            [ran(gpu("old", 4), "a", for_s=1000), ran(gpu("older", 4), "b", for_s=2000), gpu("new", 4)],
            {"old": "new"},
            id="the last that reached the threshold",
        ),
        pytest.param(
            [ran(gpu("x", 4), "a", for_s=899), ran(gpu("y", 4), "b", for_s=899), gpu("new", 4)],
            {},
            id="nobody below it: 4 GPUs reach it after 900 s",
        ),
        pytest.param(
            [ran(gpu("x", 4, served_s=899), "a", for_s=1), ran(gpu("y", 4), "b"), gpu("new", 4)],
            {"x": "new"},
            id="service before a stop counts",
        ),
        pytest.param(
            [ran(gpu("x", 4), "a", for_s=1000), ran(gpu("y", 4), "b"), gpu("back", 4, served_s=900)],
            {},
            id="within the second queue nobody is stopped",
        ),
        pytest.param(
            [ran(gpu("x", 4, cores=8), "a", for_s=1000), ran(gpu("y", 4, cores=8), "b"), gpu("cpu", 0)],
            {},
            id="nor for CPU jobs",
        ),
        pytest.param(
            [ran(gpu("cpu", 0, cores=8), "a", for_s=9999), ran(gpu("y", 4), "b"), gpu("new", 4)],
            {},
            id="nor are CPU jobs",
        ),
    ],
)
def test_who_is_stopped_for_the_less_served_job(jobs: list[Job], expected: dict[str, str]) -> None:
    assert stops(LAS, *jobs) == expected


def hour(name: str, gpus: int, *nodes: str, **changes: object) -> Job:
    """A job whose slice is over: it ran for an hour on these nodes."""
    built = gpu(name, gpus, replicas=len(nodes))
    return ran(replace(built, **changes), *nodes, for_s=3600.0)  # type: ignore[arg-type]  # fields of a job


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param([hour("x", 4, "a"), hour("y", 4, "b"), gpu("new", 4)], {"y": "new"}, id="one whose slice is over"),
        pytest.param(
            [hour("x", 4, "a"), hour("y", 4, "b"), gpu("back", 4, served_s=900)], {}, id="not for one served as much"
        ),
        pytest.param(
            [ran(gpu("x", 4, served_s=9999), "a", for_s=599), ran(gpu("y", 4), "b"), gpu("new", 4)],
            {},
            id="not before it ran for 10 min at once",
        ),
        pytest.param(
            [ran(gpu("x", 4, served_s=9999), "a", for_s=600), ran(gpu("y", 4), "b"), gpu("new", 4)],
            {"x": "new"},
            id="from then on",
        ),
        pytest.param(
            [hour("x", 4, "a"), hour("y", 4, "b"), replace(gpu("new", 4), resumable=False)],
            {},
            id="not for one that would never make room itself",
        ),
        pytest.param(
            [hour("x", 4, "a", resumable=False), hour("y", 4, "b", resumable=False), gpu("new", 4)],
            {},
            id="nobody without checkpoints",
        ),
        pytest.param(
            [ran(gpu("old", 4), "a", for_s=3600), ran(gpu("older", 4), "b", for_s=7200), gpu("new", 4)],
            {"older": "new"},
            id="the one that ran longest: long jobs are taken to be rare",
        ),
        pytest.param(
            [
                ran(gpu("gang", 3, replicas=2), "a", "b", for_s=9000),
                *(ran(gpu("x", 1), "a", for_s=3600), ran(gpu("y", 1), "b"), gpu("new", 1)),
            ],
            {"x": "new"},
            id="but rather one that does not hold far more",
        ),
        pytest.param(
            [
                *(ran(gpu("x", 2), "a", for_s=9000), ran(gpu("y", 1), "b", for_s=3600)),
                *(ran(gpu("v", 2), "a"), ran(gpu("w", 3), "b"), gpu("new", 1)),
            ],
            {"x": "new"},
            id="twice as many is not far more",
        ),
        pytest.param([hour("gang", 4, "a", "b"), gpu("new", 1)], {"gang": "new"}, id="gangs go whole"),
        pytest.param(
            [hour("x", 4, "a", priority=1), hour("y", 4, "b", priority=1), gpu("new", 4)],
            {},
            id="nobody of a higher priority",
        ),
        pytest.param(
            [hour("x", 4, "a", priority=1), hour("y", 4, "b"), replace(gpu("back", 4, served_s=900), priority=1)],
            {"y": "back"},
            id="for a higher priority a lower one, however long it was served",
        ),
        pytest.param(
            [
                *(ran(replace(gpu("x", 4), priority=1), "a", for_s=9000), ran(gpu("y", 4), "b", for_s=3600)),
                replace(gpu("new", 2), priority=2),
            ],
            {"y": "new"},
            id="the lowest priority first, however long it was served",
        ),
        pytest.param([hour("x", 4, "a"), hour("y", 4, "b"), gpu("cpu", 0, cores=8)], {}, id="nobody for a CPU job"),
    ],
)
def test_who_makes_room_under_coda_for_the_less_served_job(jobs: list[Job], expected: dict[str, str]) -> None:
    assert stops(CODA, *jobs) == expected


def test_somebody_makes_room_for_an_overdue_job_however_long_it_was_served() -> None:
    jobs = (hour("x", 4, "a"), hour("y", 4, "b"), replace(gpu("late", 4, served_s=900), queued_s=NOW_S - 200.0))
    assert stops(replace(CODA, promise_patience_s=100.0), *jobs) == {"y": "late"}
    assert stops(replace(CODA, promise_patience_s=300.0), *jobs) == {}


@pytest.mark.parametrize("part", [Component.TIME_SLICES, Component.BORROWING, Component.MIGRATION])
def test_without_slices_or_what_they_need_nobody_makes_room(part: Component) -> None:
    jobs = (hour("x", 4, "a"), hour("y", 4, "b"), gpu("new", 4))
    assert stops(replace(CODA, without=frozenset({part})), *jobs) == {}


def test_no_guest_moves_for_a_job_while_a_small_one_goes_before_it() -> None:
    """The small job would take what the guest leaves, move in its turn, and so for ever."""
    guest, resident = ran(gpu("guest", 1, served_s=9999), "a", for_s=60), ran(gpu("resident", 3), "b")
    large, small = gpu("large", 4, served_s=9999), gpu("small", 1, cores=8)
    assert stops(CODA, guest, resident, large, small) == {}
    assert moved(CODA, guest, resident, large) == {"guest": "large"}
    assert moved(CODA, guest, resident, gpu("large", 4), small) == {"guest": "large"}


def test_a_guest_of_a_higher_priority_does_not_move() -> None:
    """It would come back to where it was, before the job, and so for ever."""
    new, resident = ran(gpu("new", 1), "a", for_s=60), ran(gpu("resident", 3), "b")
    assert moved(CODA, new, resident, gpu("large", 4)) == {"new": "large"}
    assert moved(CODA, replace(new, priority=1), resident, gpu("large", 4)) == {}


def test_a_guest_that_moved_waits_behind_the_job_that_it_moved_for() -> None:
    """However little both were served: otherwise it would come back to where it was, and so for ever."""
    guest, large = replace(gpu("guest", 1), returned=True, attempt=2), gpu("large", 4, served_s=9999)
    plan = decide(world(NODES, [ran(gpu("resident", 3), "b"), guest, large]), CODA, NOW_S)
    assert [(start.job.split("/")[1], start.nodes) for start in plan.starts] == [("large", ("a",)), ("guest", ("b",))]


def test_time_alone_ends_a_slice() -> None:
    jobs = (ran(gpu("x", 4), "a", for_s=800.0), ran(gpu("y", 4), "b", for_s=700.0), gpu("new", 4))
    plan = decide(world(NODES, jobs), CODA, NOW_S)
    assert not plan.stops
    assert plan.wake_s == NOW_S + 100.0  # 4 GPUs were served an hour after 900 s


def test_the_less_served_go_first_and_others_by_arrival() -> None:
    waiting = [gpu("served", 1, served_s=3600), gpu("cpu", 0), replace(gpu("new", 1), queued_s=NOW_S + 1)]
    plan = decide(world(NODES, waiting), LAS, NOW_S + 1)
    assert [start.job for start in plan.starts] == ["team/new", "team/cpu", "team/served"]


def test_the_plan_says_when_time_alone_will_bring_a_stop() -> None:
    jobs = [ran(gpu("x", 4), "a", for_s=100), ran(gpu("y", 4), "b", for_s=50), gpu("new", 4)]
    now = world(NODES, jobs)
    plan = decide(now, LAS, NOW_S)
    assert plan.wake_s == NOW_S + 800
    assert not decide(now, LAS, NOW_S + 799).stops
    assert [stop.job for stop in decide(now, LAS, NOW_S + 800).stops] == ["team/x"]
    assert decide(world(NODES, jobs[:2]), LAS, NOW_S).wake_s is None


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param(
            [
                ran(gpu("own", 4, of="lab"), "a", for_s=9),
                ran(gpu("lent", 4, of="lab"), "b", for_s=5),
                gpu("new", 4, of="firm"),
            ],
            {"lent": "new"},
            id="the job with which the quota was exceeded",
        ),
        pytest.param(
            [ran(gpu("own", 4, of="lab"), "a"), ran(gpu("x", 2, of="guest"), "b"), gpu("new", 4, of="firm")],
            {"x": "new"},
            id="a tenant without a quota borrows all",
        ),
        pytest.param(
            [ran(gpu("own", 4, of="lab"), "a"), ran(gpu("x", 4, of="guest"), "b"), gpu("new", 1, of="lab")],
            {},
            id="nobody for a job beyond its own quota",
        ),
        pytest.param(
            [ran(gpu("own", 4, of="lab"), "a"), ran(gpu("other", 2, of="firm"), "b"), gpu("new", 3, of="firm")],
            {},
            id="nobody within a quota",
        ),
        pytest.param(
            [
                ran(gpu("own", 4, of="lab"), "a"),
                ran(gpu("x", 1, of="guest"), "b", for_s=9),
                ran(gpu("y", 2, of="guest"), "b", for_s=5),
                gpu("new", 2, of="firm"),
            ],
            {"y": "new"},
            id="the newest first",
        ),
    ],
)
def test_who_is_stopped_for_a_tenants_quota(jobs: list[Job], expected: dict[str, str]) -> None:
    assert stops(YARN, *jobs) == expected


def test_jobs_within_quotas_go_before_all_that_borrow() -> None:
    waiting = [gpu("borrower", 4, of="guest"), gpu("wide", 4, of="lab", replicas=2), gpu("own", 4, of="firm")]
    plan = decide(world((node("a", gpus=4),), waiting, virtual_clusters=TENANTS), YARN, NOW_S)
    assert [start.job for start in plan.starts] == ["team/own"]


def test_gangs_within_one_rack_have_one_cleared() -> None:
    cluster = (*rack("r", 2, gpus=4), *rack("s", 2, gpus=4))
    busy = [ran(gpu(f"{name}-{n}", 4, left_s=900 + n), f"{name}-{n}") for name in "rs" for n in (0, 1)]
    gang = replace(gpu("gang", 4, left_s=5, replicas=2), within="rack")
    plan = decide(world(cluster, [*busy, gang]), PolicyConfig(policy="srtf"), NOW_S)
    assert {stop.job for stop in plan.stops} in ({"team/r-0", "team/r-1"}, {"team/s-0", "team/s-1"})


def saved(built: Job, ago_s: float) -> Job:
    return replace(built, saved_s=NOW_S - ago_s)


@pytest.mark.parametrize(
    ("built", "lost"),
    [
        pytest.param(ran(gpu("x", 2, replicas=3), "a", "a", "b", for_s=100), 600.0, id="GPU-seconds since it began"),
        pytest.param(saved(ran(gpu("x", 2), "a", for_s=100), 30), 60.0, id="since it saved"),
        pytest.param(saved(ran(gpu("x", 2), "a", for_s=100), 500), 200.0, id="a save of an earlier attempt"),
        pytest.param(saved(ran(gpu("x", 2), "a", for_s=100), -9), 0.0, id="a save in the future"),
        pytest.param(
            replace(saved(ran(gpu("x", 2), "a", for_s=100), 30), resumable=False), 200.0, id="it begins again anyway"
        ),
        pytest.param(ran(gpu("x", 0, cores=3), "a", for_s=100), 300.0, id="core-seconds of a CPU job"),
        pytest.param(gpu("x", 2), 0.0, id="it does not run"),
    ],
)
def test_how_much_work_a_stop_throws_away(built: Job, lost: float) -> None:
    assert lost_work(built, NOW_S) == lost


def test_among_jobs_whose_turn_is_over_who_has_just_saved_makes_room() -> None:
    """Without saves it is whoever had its turn last."""
    hours = 3600.0 * 8
    one, two = ran(gpu("one", 4), "a", for_s=hours), ran(gpu("two", 4), "b", for_s=hours + 60)
    new = gpu("new", 4)
    sliced = replace(CODA, arrays=ArraysConfig(reserve_cores_per_gpu=1, large_share=1.0))
    assert stops(sliced, one, two, new) == {"one": "new"}
    assert stops(sliced, one, saved(two, 60), new) == {"two": "new"}
    assert stops(sliced, saved(one, 30), saved(two, 60), new) == {"one": "new"}


def test_a_large_job_goes_where_the_guests_that_move_lose_least() -> None:
    """Both nodes are the large jobs', each has guests, and a third node takes them."""
    nodes = (node("a", gpus=4, cores=8), node("b", gpus=4, cores=8), node("c", gpus=3, cores=8))
    config = replace(CODA, arrays=ArraysConfig(reserve_cores_per_gpu=1, large_share=0.7))

    def gone(*guests: Job) -> set[str]:
        plan = decide(world(nodes, [*guests, gpu("large", 4)]), config, NOW_S)
        assert {stop.cause for stop in plan.stops} <= {StopCause.MIGRATE}
        return {stop.job.split("/")[1] for stop in plan.stops}

    one, two = ran(gpu("one", 1), "a", for_s=3000), ran(gpu("two", 1), "b", for_s=2000)
    assert gone(one, two) == {"two"}
    assert gone(saved(one, 10), two) == {"one"}
    more = ran(gpu("more", 1), "a", for_s=10)
    assert gone(saved(one, 10), more, two) == {"one", "more"}  # two that lose nothing, instead of one that loses much
    assert gone(saved(one, 10), more, saved(two, 40)) == {"two"}  # a restart costs something too
