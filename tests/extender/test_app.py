"""The HTTP side, driven as an ASGI application: no bytes may ever cause a 500, a traceback or a hang."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda_extender.app import Asgi, Dependencies, create_app
from coda_extender.guard import Guard
from coda_extender.metrics import Metrics
from coda_extender.wire import LARGE_BYTES
from coda_kube.state import ClusterState
from tests.extender.objects import job_json, node_json, placement, pod_json, rank_json

LIMIT = 3 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


async def call(app: Asgi, method: str, path: str, chunks: Iterable[bytes | None] = (), **headers: str) -> Reply:
    """One request to an ASGI application. Chunks that it does not read are not produced; None is a disconnect."""
    pending = itertools.chain(chunks, [b""], itertools.repeat(None))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        chunk = next(pending)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(chunk)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(status=sent[0]["status"], headers=head, body=b"".join(part.get("body", b"") for part in sent[1:]))


def make_app(*, leads: bool = True, synced: bool = True) -> Asgi:
    state = ClusterState()
    guard = Guard(state, in_flight_limit_s=30.0, clock=lambda: 0.0, on_settled=lambda: None)
    for name in ("n1", "n2"):
        state.on_node(None, node_json(name))
        guard.node_changed(name)
    gang = job_json("gang", placement=placement("n1"))
    gang["metadata"]["namespace"] = "default"
    state.on_job(None, gang)
    guard.job_changed(next(iter(state.job_json_by_id)))
    return create_app(
        Dependencies(guard=guard, metrics=Metrics(), leads=lambda: leads, synced=lambda: synced, body_limit_bytes=LIMIT)
    )


APP = make_app()


def request(pod: Any, *names: str, **more: Any) -> bytes:
    return orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)} | more)


async def test_filter_answers_names_with_names() -> None:
    reply = await call(APP, "POST", "/filter", [request(pod_json("foreign", gpus=1), "n1", "n2")])
    assert (reply.status, reply.json()) == (
        200,
        {
            "Nodes": None,
            "NodeNames": ["n2"],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {"n1": "coda: capacity is withheld for a gang"},
            "Error": "",
        },
    )


async def test_filter_answers_nodes_with_nodes() -> None:
    items = [node_json("n1"), node_json("n2")]
    body = request(pod_json("foreign", gpus=1), NodeNames=None, Nodes={"metadata": {}, "items": items})
    answer = (await call(APP, "POST", "/filter", [body])).json()
    assert answer["Nodes"] == {"metadata": {}, "items": [items[1]]}
    assert answer["NodeNames"] is None


async def test_filter_places_a_rank_and_prioritize_prefers_its_node() -> None:
    body = request(rank_json("gang", 0, "n1"), "n1", "n2")
    assert (await call(APP, "POST", "/filter", [body])).json()["NodeNames"] == ["n1"]
    scores = await call(APP, "POST", "/prioritize", [body])
    assert scores.json() == [{"Host": "n1", "Score": 10}]
    assert b"." not in scores.body


async def test_nodes_that_are_all_alike_get_an_empty_list_and_not_null() -> None:
    reply = await call(APP, "POST", "/prioritize", [request(pod_json("foreign"), "x", "y")])
    assert (reply.status, reply.body) == (200, b"[]")


async def test_no_nodes_at_all_is_no_error() -> None:
    answer = (await call(APP, "POST", "/filter", [request(pod_json("foreign"), NodeNames=None)])).json()
    assert (answer["NodeNames"], answer["Error"]) == ([], "")


async def test_a_replica_that_does_not_lead_says_so_and_closes_the_connection() -> None:
    app = make_app(leads=False)
    reply = await call(app, "POST", "/filter", [request(pod_json("foreign"), "n1")])
    assert (reply.status, reply.json()["Error"]) == (200, "coda: not the leader")
    assert reply.headers["connection"] == "close"
    scores = await call(app, "POST", "/prioritize", [request(pod_json("foreign"), "n1")])
    assert (scores.status, scores.headers["connection"]) == (503, "close")


@pytest.mark.parametrize("verb", ["/filter", "/prioritize"])
async def test_a_body_announced_as_too_large_is_refused_unread(verb: str) -> None:
    def never() -> Iterable[bytes]:
        raise AssertionError("the body was read")
        yield b""

    for length in (str(LIMIT + 1), "9" * 400):
        reply = await call(APP, "POST", verb, never(), content_length=length)
        assert (reply.status, reply.headers["connection"]) == (413, "close")


@pytest.mark.parametrize("verb", ["/filter", "/prioritize"])
async def test_a_body_that_grows_too_large_is_refused_when_it_does(verb: str) -> None:
    produced = 0

    def endless() -> Iterable[bytes]:
        nonlocal produced
        while produced < 1000:
            produced += 1
            yield b"[" * 65536

    reply = await call(APP, "POST", verb, endless())
    assert reply.status == 413
    assert produced <= LIMIT / 65536 + 3


async def test_a_body_of_just_the_limit_is_read() -> None:
    body = request(pod_json("foreign", gpus=1), "n2")
    padded = body + b" " * (LIMIT - len(body))
    assert (await call(APP, "POST", "/filter", [padded])).json()["NodeNames"] == ["n2"]


async def test_a_large_request_is_answered_like_a_small_one() -> None:
    body = request(pod_json("foreign", gpus=1), "n2", *("n" * 200 + str(number) for number in range(2000)))
    assert len(body) > LARGE_BYTES
    assert (await call(APP, "POST", "/filter", [body])).json()["NodeNames"][0] == "n2"
    assert (await call(APP, "POST", "/prioritize", [body])).json() == [{"Host": "n2", "Score": 2}]


async def test_more_large_requests_at_once_than_a_scheduler_sends_are_turned_away() -> None:
    app = make_app()
    body = request(pod_json("foreign", gpus=1), "n2")
    padded = body + b" " * LARGE_BYTES
    replies = await asyncio.gather(*(call(app, "POST", "/filter", [padded]) for _ in range(6)))
    errors = [reply.json()["Error"] for reply in replies]
    assert sorted(errors) == ["", "", "", "", *["coda: too many large requests at once"] * 2]
    scores = await asyncio.gather(*(call(app, "POST", "/prioritize", [padded]) for _ in range(6)))
    assert sorted(reply.status for reply in scores) == [200, 200, 200, 200, 503, 503]


async def test_a_client_that_goes_away_is_no_error() -> None:
    reply = await call(APP, "POST", "/filter", [None])
    assert reply.status == 400


POD = pod_json("foreign", gpus=1)


def pod_with(path: str, value: Any) -> Any:
    """The pod with another value at a dotted path."""
    pod = orjson.loads(orjson.dumps(POD))
    *parents, last = path.split(".")
    inner = pod
    for parent in parents:
        inner = inner[int(parent) if parent.isdigit() else parent]
    inner[int(last) if last.isdigit() else last] = value
    return pod


BAD_BODIES = {
    "nothing": b"",
    "not JSON": b"}{",
    "truncated": request(POD, "n1")[:-9],
    "a number": b"7",
    "a list": b"[]",
    "null": b"null",
    "not a number": b'{"Pod": NaN}',
    "invalid UTF-8": b'{"Pod": "\xff\xfe"}',
    "a lone surrogate": b'{"Pod": {"metadata": {"name": "\\ud800"}}}',
    "100 000 brackets": b"[" * 100_000,
    "100 000 objects": b'{"Pod":' * 100_000,
    "no pod": orjson.dumps({"NodeNames": ["n1"]}),
    "pod null": request(None, "n1"),
    "pod empty": request({}, "n1"),
    "pod a list": request([], "n1"),
    "names a string": request(POD, NodeNames="n1"),
    "names numbers": request(POD, NodeNames=[1, 2]),
    "names nested": request(POD, NodeNames=[["n1"]]),
    "names an object": request(POD, NodeNames={"n1": 1}),
    "nodes a list": request(POD, NodeNames=None, Nodes=[1]),
    "nodes without names": request(POD, NodeNames=None, Nodes={"items": [{}]}),
    "nodes with numbers for names": request(POD, NodeNames=None, Nodes={"items": [{"metadata": {"name": 1}}]}),
    "a node nested too deep to be sent back": b'{"Pod":%b,"Nodes":{"items":[{"metadata":{"name":"n1"},"x":%b}]}}'
    % (orjson.dumps(POD), b"[" * 500 + b"]" * 500),
    "more names than nodes can be": request(POD, *map(str, range(20_001))),
    "a million values": b'{"Pod":{},"x":[' + b"1," * 1_000_000 + b"1]}",
    "uid a list": request(pod_with("metadata.uid", []), "n1"),
    "labels a string": request(pod_with("metadata.labels", "coda.scheduler/job-uid"), "n1"),
    "version a word": request(pod_with("metadata.resourceVersion", "newest"), "n1"),
    "spec null": request(pod_with("spec", None), "n1"),
    "containers a number": request(pod_with("spec.containers", 3), "n1"),
    "no such quantity": request(pod_with("spec.containers.0.resources", {"requests": {"cpu": "many"}}), "n1"),
    "a quantity of 3 MB": request(
        pod_with("spec.containers.0.resources", {"requests": {"cpu": "1" * 3_000_000 + "x"}}), "n1"
    ),
    "a number of 3 MB": b'{"Pod":' + b"1" * 3_000_000 + b"}",
    "affinity a list": request(pod_with("spec.affinity", [1]), "n1"),
    "conditions of numbers": request(pod_with("status.conditions", [1]), "n1"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", BAD_BODIES)
async def test_a_malformed_request_gets_the_error_field_or_a_4xx(name: str) -> None:
    reply = await call(APP, "POST", "/filter", [BAD_BODIES[name]])
    assert reply.status == 200
    assert reply.json()["Error"].startswith("coda: ")
    assert len(reply.json()["Error"]) <= 400
    assert (await call(APP, "POST", "/prioritize", [BAD_BODIES[name]])).status == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = (
    "metadata", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations",
    "metadata.resourceVersion", "metadata.deletionTimestamp", "spec", "spec.nodeName", "spec.containers",
    "spec.containers.0", "spec.containers.0.resources", "spec.containers.0.resources.requests", "spec.initContainers",
    "spec.overhead", "spec.resources", "spec.affinity", "spec.schedulingGates", "status", "status.conditions",
    "status.containerStatuses",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
async def test_no_bytes_cause_an_error_of_ours(body: bytes) -> None:
    for verb in ("/filter", "/prioritize"):
        assert (await call(APP, "POST", verb, [body])).status in (200, 400)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PATHS), json_values, json_values)
async def test_no_value_anywhere_in_the_pod_causes_an_error_of_ours(path: str, value: Any, names: Any) -> None:
    body = json.dumps({"Pod": pod_with(path, value), "NodeNames": names}).encode()  # orjson refuses large numbers
    for verb in ("/filter", "/prioritize"):
        reply = await call(APP, "POST", verb, [body])
        assert reply.status in (200, 400)
        if verb == "/filter" and not reply.json()["Error"]:
            assert set(reply.json()["NodeNames"]) <= set(names or [])


async def test_unknown_paths_and_methods_are_4xx() -> None:
    assert (await call(APP, "POST", "/bind")).status == 404
    assert (await call(APP, "GET", "/filter")).status == 405


async def test_alive_at_once_ready_once_the_caches_are_filled() -> None:
    app = make_app(synced=False)
    assert (await call(app, "GET", "/healthz")).status == 200
    assert (await call(app, "GET", "/readyz")).status == 503
    assert (await call(APP, "GET", "/readyz")).status == 200


async def test_metrics_show_what_was_answered() -> None:
    app = make_app()
    await call(app, "POST", "/filter", [request(POD, "n2")])
    text = (await call(app, "GET", "/metrics")).body.decode()
    assert 'coda_extender_answers_total{outcome="ok",verb="filter"} 1.0' in text
    assert "coda_extender_filter_duration_seconds_count 1.0" in text
    assert "coda_extender_in_flight_pods 1.0" in text
    assert "coda_queue_gpus_wanted 0.0" in text
