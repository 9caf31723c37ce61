"""kopf itself, on a real connection: a job that no parser reads does not keep it from the others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_kube.api.client import Client
from coda_kube.api.credentials import Access
from coda_operator.feed.runner import feed
from coda_operator.view import ClusterView


def _kind(plural: str, kind: str) -> dict[str, Any]:
    """A kind as discovery tells it."""
    verbs = ["get", "list", "watch", "patch"]
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}


KINDS = {
    "/api/v1": _kind("namespaces", "Namespace"),
    "/apis/coda.scheduler/v1alpha1": _kind("trainingjobs", "TrainingJob"),
    "/apis/apiextensions.k8s.io/v1": _kind("customresourcedefinitions", "CustomResourceDefinition"),
}


def _group(path: str) -> dict[str, Any]:
    _, _, name, version = path.split("/")
    served = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


def job(name: str, version: int, more: str = "{}") -> str:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    head = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "TrainingJob", "metadata": metadata | {"generation": 1}}
    return f'{json.dumps(head)[:-1]},"spec":{{"template":{more}}}}}'


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


async def _fed(levels: int) -> dict[str, Any]:
    """What the operator knows after a list, and an event, with a deep job each and a good one after it."""
    events: asyncio.Queue[str] = asyncio.Queue()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        if request.path == "/apis":
            return web.json_response({"groups": [_group(path) for path in KINDS if path != "/api/v1"]})
        if request.path in KINDS:
            return web.json_response({"resources": [KINDS[request.path]]})
        if not request.path.endswith("/trainingjobs"):
            await asyncio.sleep(60)
        if "watch" not in request.query:
            items = ",".join((job("bad", 1, deep(levels)), job("one", 1)))
            return web.Response(
                text=f'{{"items":[{items}],"metadata":{{"resourceVersion":"5"}}}}', content_type="application/json"
            )
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(f'{{"type":"ADDED","object":{await events.get()}}}\n'.encode())

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"))
        cluster = ClusterView(client, lambda _: None, lambda _: None)
        feeding = asyncio.create_task(feed(cluster, client, lambda: None))
        try:
            async with asyncio.timeout(15):
                while "team/one" not in cluster.jobs.by_key:
                    await asyncio.sleep(0.02)
                events.put_nowait(job("worse", 6, deep(levels)))
                events.put_nowait(job("two", 7))
                while "team/two" not in cluster.jobs.by_key:
                    await asyncio.sleep(0.02)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await client.close()
        return {key: cluster.jobs.by_key.get(key) for key in ("team/bad", "team/worse")}


@pytest.mark.parametrize("levels", [300, 995, 1100, 9000])
def test_a_deep_job_keeps_no_other_from_the_operator(levels: int) -> None:
    """At 254 levels it could not be kept as bytes, at 990 kopf could not parse it, at 1024 nobody could."""
    with asyncio.Runner() as runner:
        known = runner.run(_fed(levels))
    assert None not in known.values(), "and the deep job is known as well, without what is nested too deeply"
