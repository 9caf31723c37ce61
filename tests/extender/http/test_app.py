"""What the extender answers, and whom it turns away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson
import pytest

from coda_extender.http.app import create_app, create_status_app
from coda_extender.protocol import LARGE_BYTES
from tests.extender.asgi import APP, LIMIT, call, make_app, make_dependencies, make_status_app, request
from tests.extender.objects import node_json, pod_json, rank_json


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


async def test_preempt_answers_with_uids_whatever_form_the_victims_have() -> None:
    urgent = pod_json("urgent", gpus=1)
    by_uid = {"n2": {"Pods": [], "NumPDBViolations": 1}, "n1": {"Pods": [{"UID": "unknown"}]}}
    whole = {"n2": {"Pods": [], "NumPDBViolations": 1}, "n1": {"Pods": [pod_json("unknown")]}}
    for victims in ({"NodeNameToMetaVictims": by_uid}, {"NodeNameToVictims": whole, "NodeNameToMetaVictims": None}):
        reply = await call(APP, "POST", "/preempt", [orjson.dumps({"Pod": urgent, **victims})])
        assert (reply.status, reply.json()) == (
            200,
            {"NodeNameToMetaVictims": {"n2": {"Pods": [], "NumPDBViolations": 1}}},
        )


@pytest.mark.parametrize(
    "victims", [[], {"n1": None}, {"n1": {"Pods": [{}]}}, {"n1": {"Pods": [{"UID": 7}]}}, {"n1": {"Pods": 7}}]
)
async def test_victims_that_cannot_be_read_are_refused(victims: object) -> None:
    body = orjson.dumps({"Pod": pod_json("urgent"), "NodeNameToMetaVictims": victims or 7})
    assert (await call(APP, "POST", "/preempt", [body])).status == 400


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


async def test_unknown_paths_and_methods_are_4xx() -> None:
    assert (await call(APP, "POST", "/bind")).status == 404
    assert (await call(APP, "GET", "/filter")).status == 405


async def test_alive_at_once_ready_once_the_caches_are_filled() -> None:
    app = make_status_app(synced=False)
    assert (await call(app, "GET", "/healthz")).status == 200
    assert (await call(app, "GET", "/readyz")).status == 503
    assert (await call(make_status_app(), "GET", "/readyz")).status == 200


async def test_the_two_ports_answer_nothing_of_each_other() -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await call(APP, "GET", path)).status == 404
    for path in ("/filter", "/prioritize"):
        assert (await call(make_status_app(), "POST", path, [b"{}"])).status == 404


async def test_metrics_show_what_was_answered() -> None:
    dependencies = make_dependencies()
    await call(create_app(dependencies), "POST", "/filter", [request(pod_json("foreign", gpus=1), "n2")])
    text = (await call(create_status_app(dependencies), "GET", "/metrics")).body.decode()
    assert 'coda_extender_answers_total{outcome="ok",verb="filter"} 1.0' in text
    assert "coda_extender_filter_duration_seconds_count 1.0" in text
    assert "coda_extender_in_flight_pods 1.0" in text
    assert "coda_queue_gpus_wanted 0.0" in text
