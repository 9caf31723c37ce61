"""What goes over the wire, against a small HTTP server that plays the API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from coda_kube.api.client import Client
from coda_kube.objects.names import LABEL_JOB
from coda_kube.objects.quantities import seconds_from_time
from coda_lab.kubelets.list_watch import follow
from coda_lab.kubelets.machine import SimPod
from coda_lab.kubelets.pods.gang_start_times import Placements
from coda_lab.kubelets.pods.status_writer import Reporter
from tests.lab.kubelets.kubelet_objects import Rig, node_object, pod_json

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[Client]:
    """A client of a server that gives every request to `answer`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = Client(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


NOT_FOUND: dict[str, Any] = {"kind": "Status", "reason": "NotFound", "details": {"name": "gone"}}


class Api:
    """Notes every write, but refuses the first ones with the statuses in `failures`. Answers `together` at a time."""

    def __init__(self, *, wanted: int, failures: tuple[int, ...] = (), together: int = 1) -> None:
        self.writes: list[str] = []
        self.busy = self.most_busy = 0
        self.written = asyncio.Event()
        self._wanted = wanted
        self._failures = list(failures)
        self._barrier = asyncio.Barrier(together)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        await self._barrier.wait()
        self.busy -= 1
        if self._failures:
            status = self._failures.pop(0)
            return web.json_response(NOT_FOUND if status == 404 else {"message": "not now"}, status=status)
        name = request.path.removesuffix("/status").rpartition("/")[2]
        if request.method == "DELETE":
            assert body["preconditions"] == {"uid": f"uid-{name}"}
            assert body["gracePeriodSeconds"] == 0
        self.writes.append(f"{name} {body['status']['phase'] if request.method == 'PATCH' else 'removed'}")
        if len(self.writes) == self._wanted:
            self.written.set()
        return web.json_response({})


async def writes_of(api: Api, pods: list[SimPod], *, in_flight: int = 4) -> list[str]:
    async with served(api.answer) as client:
        reporter = Reporter(client, in_flight=in_flight)
        running = asyncio.create_task(reporter.run())
        for pod in pods:
            reporter.report(pod)
            reporter.report(pod)
        await asyncio.wait_for(api.written.wait(), 20)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    return api.writes


def ended_and_deleted(rig: Rig, name: str) -> SimPod:
    rig.fleet.pod_seen(pod_json(name, run_seconds="5"))
    rig.run_to(9)
    rig.fleet.pod_seen(pod_json(name, deleted_with_grace_s=30))
    return rig.pod(name)


async def test_only_the_newest_state_is_written_and_the_removal_comes_last() -> None:
    assert await writes_of(Api(wanted=2), [ended_and_deleted(Rig(), "p")]) == ["p Succeeded", "p removed"]


async def test_what_never_started_is_removed_without_further_words() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", never_start="true"))
    rig.fleet.pod_seen(pod_json("p", deleted_with_grace_s=30))
    assert await writes_of(Api(wanted=1), [rig.pod("p")]) == ["p removed"]


async def test_an_outage_and_its_end_delay_and_lose_nothing() -> None:
    api = Api(wanted=2, failures=(503, 403, 429, 500, 409))  # 403: it answers again, but has not read its roles yet
    assert await writes_of(api, [ended_and_deleted(Rig(), "p")]) == ["p Succeeded", "p removed"]


@pytest.mark.parametrize("status", [404, 422])
async def test_a_refused_write_is_not_repeated_and_holds_up_nobody(status: int) -> None:
    rig = Rig()
    for name in ("p", "q"):
        rig.fleet.pod_seen(pod_json(name))
    rig.run_to(1)
    assert await writes_of(Api(wanted=1, failures=(status,)), [rig.pod("p"), rig.pod("q")], in_flight=1) == [
        "q Running"
    ]


async def test_a_silent_machine_writes_nothing() -> None:
    rig = Rig("n0", "n1")
    for name, node in (("lost", "n0"), ("seen", "n1")):
        rig.fleet.pod_seen(pod_json(name, node=node))
    rig.run_to(1)
    rig.fleet.node_seen(node_object("n0", lost=True))
    assert await writes_of(Api(wanted=1), [rig.pod("lost"), rig.pod("seen")], in_flight=1) == ["seen Running"]


async def test_no_more_writes_at_once_than_allowed() -> None:
    rig = Rig()
    for number in range(30):
        rig.fleet.pod_seen(pod_json(f"p{number}"))
    rig.run_to(1)
    api = Api(wanted=30, together=3)
    await writes_of(api, [rig.pod(f"p{number}") for number in range(30)], in_flight=3)
    assert (len(set(api.writes)), api.most_busy) == (30, 3)


def event(kind: str, version: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": f"v{version}", "resourceVersion": str(version)}} | more}


async def test_following_resumes_after_an_outage_and_lists_again_when_its_place_is_gone() -> None:
    streams = [
        [event("ADDED", 11), event("BOOKMARK", 15)],
        None,  # an outage
        [event("MODIFIED", 16), event("DELETED", 17)],
        [{"type": "ERROR", "object": {"code": 410, "message": "too old"}}],
        [event("ADDED", 31)],
    ]
    asked: list[str] = []
    heard: list[str] = []
    done = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            version = "10" if not asked else "30"
            return web.json_response({"metadata": {"resourceVersion": version}, "items": []})
        asked.append(request.query["resourceVersion"])
        events = streams[len(asked) - 1] if len(asked) <= len(streams) else []
        if events is None:
            return web.json_response({"message": "not now"}, status=503)
        if len(asked) > len(streams):
            done.set()
            await asyncio.sleep(60)
        return web.Response(body=b"".join(orjson.dumps(each) + b"\n" for each in events))

    async with served(answer) as client:
        following = asyncio.create_task(
            follow(
                client,
                "/api/v1/pods",
                {},
                listed=lambda items: heard.append(f"list of {len(items)}"),
                seen=lambda item: heard.append(f"seen {item['metadata']['name']}"),
                gone=lambda item: heard.append(f"gone {item['metadata']['name']}"),
            )
        )
        await asyncio.wait_for(done.wait(), 20)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert asked == ["10", "15", "15", "17", "30", "31"]
    assert heard == ["list of 0", "seen v11", "seen v16", "gone v17", "list of 0", "seen v31"]


async def test_it_is_asked_when_a_gang_was_placed_and_a_job_that_is_gone_stops_nobody() -> None:
    rig, answered = Rig(), asyncio.Event()
    for job in ("gone", "queued", "placed"):
        rig.fleet.pod_seen(pod_json(f"{job}-1-0", labels={LABEL_JOB: job}, run_from="placement"))
    status_by_job: dict[str, Any] = {
        "queued": {"phase": "Queued"},
        "placed": {"placement": {"committedTime": "2026-01-01T00:00:05.250Z"}},
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        job = request.path.removeprefix("/apis/coda.scheduler/v1alpha1/namespaces/ns/trainingjobs/")
        if job not in status_by_job:
            return web.json_response(NOT_FOUND, status=404)
        return web.json_response({"status": status_by_job[job]})

    told: list[tuple[str, float]] = []

    def placed(pod: SimPod, placed_s: float) -> None:
        told.append((pod.name, placed_s))
        answered.set()

    async with served(answer) as client:
        placements = Placements(client, placed)
        for job in ("gone", "queued", "placed"):
            placements.ask(rig.pod(f"{job}-1-0"))
        running = asyncio.create_task(placements.run())
        await asyncio.wait_for(answered.wait(), 20)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert told == [("placed-1-0", seconds_from_time("2026-01-01T00:00:05.250Z"))]
