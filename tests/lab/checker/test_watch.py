"""The referee at work on an in-memory API server: what it confirms, what it drops, and what it survives."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping

import pytest

from coda.errors import Outage
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import micro_time_from_seconds
from coda_lab.checker import Checker, Counts, check_once
from coda_lab.checker.watch import Kind, read_snapshot
from tests.lab.checker.checker_objects import FakeServer, job, lease, node, pending, placement, pod, rank_pod

SOON_S = 15.0


def server_with(*things: tuple[Kind, Json]) -> FakeServer:
    server = FakeServer()
    for kind, thing in things:
        server.put(kind, thing)
    return server


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not claim():
            await asyncio.sleep(0.02)


def found(checker: Checker) -> list[tuple[str, tuple[str, ...]]]:
    return [(breach.invariant.value, breach.objects) for breach in checker.breaches]


RUNNING = (Kind.JOB, job(phase="Running", placement=placement("n1")))


async def test_a_breach_is_confirmed_and_reported_once() -> None:
    server = server_with((Kind.NODE, node()), RUNNING)
    async with Checker(server).watching() as checker:
        server.put(Kind.POD, rank_pod(0, pin="n2"))
        async with asyncio.timeout(SOON_S):
            await checker.news()
        server.put(Kind.POD, rank_pod(0, pin="n2", started=True))
        evaluations = checker.counts.evaluations
        await until(lambda: checker.counts.evaluations > evaluations)
    assert found(checker) == [("c", ("Pod/ns/j-1-0", "TrainingJob/ns/j"))]


async def test_a_suspicion_that_the_fresh_list_does_not_confirm_is_dropped() -> None:
    server = server_with((Kind.NODE, node()), (Kind.POD, pod("a", gpus=8)))
    async with Checker(server).watching() as checker:
        server.hold(Kind.POD)
        server.drop(Kind.POD, "uid-a")
        server.put(Kind.JOB, job(placement=placement("n1"), gpus=8))
        await until(lambda: checker.counts.dropped > 0)
    assert found(checker) == []


async def test_what_is_true_when_the_watch_ends_is_still_looked_at() -> None:
    server = server_with((Kind.NODE, node()), (Kind.POD, pod("a", gpus=9)))
    moments_s = itertools.count()
    async with Checker(server, clock=lambda: float(next(moments_s))).watching() as checker:
        pass
    assert found(checker) == []  # suspected, but its time to settle was not over
    async with Checker(server, clock=lambda: float(next(moments_s))).watching() as checker:
        await until(lambda: checker.counts.evaluations > 0)
    assert found(checker) == [("a", ("Node/n1", "Pod/ns/a"))]


async def test_a_rank_started_twice_is_found_from_the_changes_alone() -> None:
    server = server_with((Kind.NODE, node()), RUNNING, (Kind.POD, rank_pod(0, uid="one", started=True)))
    async with Checker(server).watching() as checker:
        server.drop(Kind.POD, "one")
        server.put(Kind.POD, rank_pod(0, uid="two", started=True))
        server.drop(Kind.POD, "two")
        await until(lambda: bool(checker.breaches))
    assert found(checker) == [("f", ("Pod/ns/j-1-0",))]


async def test_a_restore_takes_back_the_history_but_not_the_judgement() -> None:
    server = server_with((Kind.NODE, node()), RUNNING, (Kind.POD, rank_pod(0, uid="one", started=True)))
    async with Checker(server).watching() as checker:
        server.drop(Kind.POD, "one")
        await until(lambda: checker.counts.pods == 1)
        checker.restored()
        server.put(Kind.POD, rank_pod(0, uid="two", started=True))
        await until(lambda: checker.counts.pods == 2)
        assert found(checker) == []
        server.drop(Kind.POD, "two")
        server.put(Kind.POD, rank_pod(0, uid="three", started=True))
        await until(lambda: bool(checker.breaches))
    assert found(checker) == [("f", ("Pod/ns/j-1-0",))]


@pytest.mark.parametrize("forget", [False, True])
async def test_goes_on_after_the_api_server_was_away(forget: bool) -> None:
    server = server_with((Kind.NODE, node()), (Kind.POD, pod("a", gpus=4)), (Kind.POD, pod("gone", gpus=4)))
    async with Checker(server).watching() as checker:
        server.down = True
        server.restart(forget=forget)
        await until(lambda: checker.counts.outages > 0)
        server.drop(Kind.POD, "uid-gone")
        server.put(Kind.POD, pod("b", gpus=5))
        server.down = False
        await until(lambda: bool(checker.breaches))
    assert found(checker) == [("a", ("Node/n1", "Pod/ns/a", "Pod/ns/b"))]
    assert "connection" in checker.report().notes[0]


async def test_a_bug_in_the_watch_is_not_taken_for_peace() -> None:
    server = server_with((Kind.NODE, node()))
    checker = Checker(server)
    watch = checker.watching()
    await watch.__aenter__()
    server.tell(Kind.POD, {"type": "ADDED", "object": {}})
    with pytest.raises(KeyError, match="metadata"):
        await checker.news()
    with pytest.raises(KeyError, match="metadata"):
        await watch.__aexit__(None, None, None)


async def test_the_first_lists_must_succeed() -> None:
    server = server_with()
    server.down = True
    with pytest.raises(Outage, match="connection refused"):
        async with Checker(server).watching():
            pass


async def test_counts_what_it_looked_at() -> None:
    server = server_with((Kind.NODE, node()), RUNNING, (Kind.POD, rank_pod(0)), (Kind.JOB, job("k", pending=pending())))
    async with Checker(server).watching() as checker:
        server.drop(Kind.POD, "uid-j-1-0")
        server.put(Kind.POD, pod("another"))
        await until(lambda: checker.counts.pods == 2 and checker.counts.evaluations > 0)
    counts = checker.counts
    assert counts == Counts(
        nodes=1, pods=2, jobs=2, attempts=1, plans=1, most_waiting=1, evaluations=counts.evaluations
    )
    assert checker.report().summary() == "no breach: 1 node, 2 pods, 2 jobs looked at"


async def test_an_object_that_can_not_be_read_is_named() -> None:
    strange = job()
    strange["status"]["request"]["resources"]["cpu"] = "many"
    checker = Checker(server_with((Kind.JOB, strange)))
    await checker.look()
    assert checker.report().notes == (
        "ns/j could not be read and is not judged: 'many' is not a Kubernetes quantity such as 500m, 2 or 16Gi",
    )


async def test_one_look_is_over_at_once_where_all_is_well() -> None:
    server = server_with((Kind.NODE, node()), RUNNING, (Kind.POD, rank_pod(0)))
    assert await check_once(server) == []
    assert server.lists == [Kind.JOB, Kind.POD, Kind.NODE, Kind.JOB, Kind.LEASE]


async def test_one_look_confirms_what_it_suspects() -> None:
    server = server_with((Kind.NODE, node()), (Kind.POD, pod("a", gpus=9)))
    breaches = await check_once(server)
    assert [breach.as_json() | {"time": ""} for breach in breaches] == [
        {
            "invariant": "a",
            "title": "node over committed",
            "time": "",
            "objects": ["Node/n1", "Pod/ns/a"],
            "sentence": "node n1: bound pods ask for 9 nvidia.com/gpu, allocatable is 8",
        }
    ]


class RenewingServer(FakeServer):
    """Its planner renews whenever the Leases are listed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    async def list_pages(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        if Kind(path) is Kind.LEASE:
            self.put(Kind.LEASE, lease("coda-planner", renewed=micro_time_from_seconds(self._clock())))
        return await super().list_pages(path, query)


def fast_clock() -> Callable[[], float]:
    """Four times as fast as the wall's."""
    began_s = time.monotonic()
    return lambda: 1.7e9 + 4 * (time.monotonic() - began_s)


async def test_one_look_gives_a_living_planner_its_5_seconds() -> None:
    clock = fast_clock()
    server = RenewingServer(clock)
    server.put(Kind.JOB, job())
    began_s = clock()
    checker = Checker(server, clock=clock)
    await checker.look()
    assert found(checker) == [("g", ("TrainingJob/ns/j",))]
    assert checker.breaches[0].time_s - began_s >= 5.0


async def test_one_look_says_when_there_is_nobody_to_charge() -> None:
    server = FakeServer()
    server.put(Kind.JOB, job())
    checker = Checker(server, clock=fast_clock())
    await checker.look()
    assert found(checker) == []
    assert checker.report().notes == (
        "nobody was seen renewing the Lease coda-planner: delays that are its holder's duty were not judged",
    )


class MovingServer(FakeServer):
    """Its job changes each time the pods are listed."""

    async def list_pages(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        answer = await super().list_pages(path, query)
        if Kind(path) is Kind.POD:
            self.put(Kind.JOB, job(attempt=2))
        return answer


async def test_a_snapshot_sets_aside_the_jobs_that_changed_while_it_was_read() -> None:
    server = MovingServer()
    server.put(Kind.JOB, job())
    server.put(Kind.JOB, job("k"))
    snapshot = await read_snapshot(server)
    assert snapshot.view.unsteady == {"uid-j"}
    assert set(snapshot.view.jobs) == {"uid-k"}
