"""Any bytes get an answer of the protocol: no 500, no traceback and no hang."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extender.asgi import APP, call, request
from tests.extender.objects import pod_json

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
    for verb in ("/filter", "/prioritize", "/preempt"):
        assert (await call(APP, "POST", verb, [body])).status in (200, 400)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PATHS), json_values, json_values)
async def test_no_value_anywhere_in_the_pod_causes_an_error_of_ours(path: str, value: Any, names: Any) -> None:
    question = {"Pod": pod_with(path, value), "NodeNames": names, "NodeNameToMetaVictims": names}
    body = json.dumps(question).encode()  # orjson refuses large numbers
    for verb in ("/filter", "/prioritize", "/preempt"):
        reply = await call(APP, "POST", verb, [body])
        assert reply.status in (200, 400)
        if verb == "/filter" and not reply.json()["Error"]:
            assert set(reply.json()["NodeNames"]) <= set(names or [])
