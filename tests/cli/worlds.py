"""Gangs, histories and an API server in memory, for these tests."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from coda.model import Phase
from coda_cli.job_history import History, Moments, WaitRecord, jobs_path
from coda_cli.replay.metrics import FollowedJob
from coda_cli.replay.submissions import Manner, Sent, Submission, submissions_from_gangs
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_sim.traces import RecordedStatus
from coda_sim.workload import Gang
from tests.sim.worlds import row

MANNER = Manner(namespace="default", run="run-1", speed=100.0, image="busybox")


def gang(
    job_id: str = "hv1",
    *,
    gpus: int = 1,
    replicas: int = 1,
    submit_s: float = 0.0,
    duration_s: float = 60.0,
    user: str = "u1",
    status: RecordedStatus = RecordedStatus.PASSED,
    line: int = 2,
) -> Gang:
    source = row(
        job_id, gpus=gpus, submit_s=submit_s, duration_s=duration_s, user=user, status=status, line=line, nodes=replicas
    )
    return Gang(row=source, replicas=replicas, gpus_per_replica=gpus // replicas, cpus_per_replica=4, changes=())


def submissions(*gangs: Gang, manner: Manner = MANNER) -> tuple[Submission, ...]:
    return submissions_from_gangs(gangs, manner, source="jobs.csv")


def followed(
    name: str = "hv1",
    *,
    phase: Phase | None = Phase.SUCCEEDED,
    sent_s: float = 0.0,
    queued_s: float | None = 0.0,
    placed_s: float | None = 0.1,
    started_s: float | None = 0.5,
    finished_s: float | None = 1.0,
    reasons: tuple[WaitRecord, ...] = (),
    refusal: str | None = None,
    manner: Manner = MANNER,
    **row_fields: Any,
) -> FollowedJob:
    (submission,) = submissions(gang(name, **row_fields), manner=manner)
    history = History(
        name=name,
        gpus=1,
        cores=4,
        phase=phase,
        attempt=1,
        seen=Moments(queued_s=queued_s, placed_s=placed_s, started_s=started_s, finished_s=finished_s),
        pending=reasons[-1] if reasons and phase is Phase.QUEUED else None,
        reasons=reasons,
    )
    return FollowedJob(
        submission=submission,
        sent=Sent(planned_s=sent_s, sent_s=sent_s, refusal=refusal),
        history=None if refusal else history,
    )


class Api:
    """TrainingJobs of any namespace: create, list, watch. `answers` are given to the next creates instead."""

    def __init__(self) -> None:
        self.jobs: dict[str, Json] = {}
        self.answers: list[tuple[int, str, str]] = []  # status, reason, message
        self.created = asyncio.Event()
        self._version = 0
        self._events: list[Json] = []
        self._news = asyncio.Condition()

    async def put(self, job: Json, kind: str = "MODIFIED") -> None:
        self._version += 1
        job = copy.deepcopy(job)
        job["metadata"]["resourceVersion"] = str(self._version)
        self.jobs[job["metadata"]["name"]] = job
        if kind == "DELETED":
            del self.jobs[job["metadata"]["name"]]
        self._events.append({"type": kind, "object": job})
        async with self._news:
            self._news.notify_all()

    async def set_status(self, name: str, **status: object) -> None:
        job = self.jobs[name]
        await self.put({**job, "status": {**job.get("status", {}), **status}})

    async def on_create(self, request: web.Request) -> web.Response:
        job = orjson.loads(await request.read())
        if self.answers:
            status, reason, message = self.answers.pop(0)
            details = {"name": request.path.split("/")[5], "kind": "namespaces"} if status == 404 else {}
            said = {"kind": "Status", "reason": reason, "message": message, "details": details}
            return web.json_response(said, status=status)
        name = job["metadata"]["name"]
        if request.query.get("dryRun"):
            return web.json_response(job, status=201)
        if name in self.jobs:
            return web.json_response({"reason": "AlreadyExists", "message": f"{name} exists"}, status=409)
        job["metadata"]["uid"] = f"uid-{name}"
        await self.put(job, "ADDED")
        self.created.set()
        return web.json_response(self.jobs[name], status=201)

    async def on_read(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            items = list(self.jobs.values())
            return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        told = int(request.query["resourceVersion"])
        while True:
            async with self._news:
                while len(self._events) <= told:
                    await self._news.wait()
            for event in self._events[told:]:
                await response.write(orjson.dumps(event) + b"\n")
            told = len(self._events)


@asynccontextmanager
async def serving(api: Api) -> AsyncIterator[Client]:
    """A client of `api` over a real connection."""
    app = web.Application()
    app.router.add_get(jobs_path(""), api.on_read)
    app.router.add_get(jobs_path("{namespace}"), api.on_read)
    app.router.add_post(jobs_path("{namespace}"), api.on_create)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = kubernetes_client.Configuration()
    host, port = runner.addresses[0][:2]
    configuration.host = f"http://{host}:{port}"
    client = Client(configuration)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def job_json(name: str = "hv1", status: Mapping[str, object] | None = None, **spec: object) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default", "resourceVersion": "1"},
        "spec": {"replicas": 2, "gpusPerReplica": 4, "cpusPerReplica": 8, **spec},
        "status": dict(status or {}),
    }
