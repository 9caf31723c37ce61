"""What `coda doctor` reads, and what it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_cli.doctor.seen import Lead, _volume, history_claim, lead, leaves_certificates, settings_of
from coda_kube.api.client import Client, Rejected
from coda_kube.api.credentials import Access
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import Call, FakeApi

GONE: Json = {"kind": "Status", "reason": "NotFound", "details": {"name": "coda-planner", "kind": "leases"}}
PATH = "/apis/coordination.k8s.io/v1/namespaces/coda-system/leases/coda-planner"


@asynccontextmanager
async def answering(answer: Callable[[int], tuple[int, Json]]) -> AsyncIterator[Client]:
    """A client whose server is asked for the planner's Lease; `answer` is told how often before."""
    count = 0

    async def on_get(_: web.Request) -> web.Response:
        nonlocal count
        status, body = answer(count)
        count += 1
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_get(PATH, on_get)
    async with TestServer(app, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"))
        yield client
        await client.close()


def lease(version: int, holder: str = "coda-extender-0") -> tuple[int, Json]:
    return 200, {"metadata": {"resourceVersion": str(version)}, "spec": {"holderIdentity": holder}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(lambda count: lease(count // 2), Lead.RENEWED, id="renewed"),
        pytest.param(lambda _: lease(1), Lead.LEFT, id="left"),
        pytest.param(lambda _: lease(1, ""), Lead.NOBODY, id="given back"),
        pytest.param(lambda _: (404, GONE), Lead.NOBODY, id="never there"),
        pytest.param(lambda count: (404, GONE) if count else lease(1), Lead.NOBODY, id="deleted"),
        pytest.param(lambda _: (403, {"reason": "Forbidden"}), None, id="hidden"),
    ],
)
async def test_a_lease_that_may_not_be_read_says_nothing_about_the_leader(
    answer: Callable[[int], tuple[int, Json]], expected: Lead | None
) -> None:
    async with answering(answer) as client:
        assert await lead(client, "coda-planner", within_s=0.1, every_s=0.01) is expected


def test_the_settings_of_a_deployment_are_those_that_it_states() -> None:
    env = [
        {"name": "CODA_CORDON_SHARE", "value": "0.2"},
        {"name": "CODA_CERTIFICATES", "value": "foreign"},
        {"name": "CODA_TOPOLOGY_LEVELS"},  # the API server leaves out a value that is empty
        {"name": "CODA_IDENTITY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    operator = {"spec": {"template": {"spec": {"containers": [{"name": "proxy"}, {"env": env}]}}}}
    assert settings_of(operator) == {
        "CODA_CORDON_SHARE": "0.2",
        "CODA_CERTIFICATES": "foreign",
        "CODA_TOPOLOGY_LEVELS": "",
    }
    assert leaves_certificates(operator)
    assert settings_of({}) == {}


async def test_the_volume_of_the_history_is_found_by_the_operators_claim() -> None:
    volumes = [{"name": "failure-rules"}, {"name": "history", "persistentVolumeClaim": {"claimName": "mine"}}]
    assert history_claim({"spec": {"template": {"spec": {"volumes": volumes}}}}) == "mine"
    assert history_claim({}) == ""
    api, claims = FakeApi(), "/api/v1/namespaces/coda-system/persistentvolumeclaims"
    assert await _volume(api, "mine") == {}, "it is gone"
    api.set(claims, {"metadata": {"name": "mine"}, "spec": {}})
    assert await _volume(api, "mine") == {}, "it has no volume yet"
    api.set(claims, {"metadata": {"name": "mine"}, "spec": {"volumeName": "pv-1"}})
    api.set("/api/v1/persistentvolumes", {"metadata": {"name": "pv-1"}, "spec": {"local": {}}})
    assert (await _volume(api, "mine") or {})["spec"] == {"local": {}}

    def hide(call: Call) -> None:
        if "persistentvolumes" in call.path:
            raise Rejected(403, "Forbidden", "no")

    api.before = hide
    assert await _volume(api, "mine") is None
    assert await _volume(api, "") == {}, "it is elsewhere"
