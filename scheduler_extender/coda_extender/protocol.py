"""Reads and writes the JSON of kube-scheduler's extender protocol. Nothing else knows it.

Without pydantic: a request may hold 5000 names and is answered in about a millisecond. A request that does not follow
the protocol raises `Malformed`. Source: `k8s.io/kube-scheduler/extender/v1/types.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from coda.errors import CodaError, InvalidInput
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import Pod, pod_from_json

MOST_NAMES: Final = 20_000
"""In one request. Kubernetes is built for 5000 nodes; while names are read, no other request is answered."""

MOST_VALUES: Final = 200_000
"""In one request above `LARGE_BYTES`. A Node object takes 30 bytes per value. 3 MB of brackets alone hold the
interpreter for 160 ms (measured), with this limit for 20 ms."""

LARGE_BYTES: Final = 256 * 1024
"""More than a pod and 5000 node names take."""


class Malformed(InvalidInput):
    """A request that does not follow the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One filter or prioritize request. `items`: the Node objects, if it has any, ready for the answer."""

    pod: Pod
    pod_version: int  # the pod's resourceVersion as the scheduler knew it
    names: tuple[str, ...] | list[str]
    items: tuple[orjson.Fragment, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """One preempt request: for each node, the uids of the pods that kube-scheduler would evict there for `pod`."""

    pod: Pod
    uids_by_node: Mapping[str, tuple[str, ...]]
    budget_violations_by_node: Mapping[str, int]  # disruption budgets that the evictions would violate


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The filter's answer: the names that passed, and a constant reason for each other name; or an error."""

    passed: Sequence[str]  # a list or a tuple
    refused: Mapping[str, str]
    error: str = ""  # no verdict on any node: kube-scheduler retries the pod with its error back-off


_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, CodaError)


def question_from_body(body: bytes) -> Question:
    """Return the filter or prioritize request in `body`. Raises Malformed, and nothing else, for any bytes."""
    request = _request_of(body)
    pod, version = _pod_of(request)
    names, items = _nodes_of(request)
    return Question(pod=pod, pod_version=version, names=names, items=items)


def preemption_from_body(body: bytes) -> Preemption:
    """Return the preempt request in `body`. Raises Malformed, and nothing else, for any bytes."""
    request = _request_of(body)
    pod, _ = _pod_of(request)
    victims = request.get("NodeNameToMetaVictims")
    if victims is None:
        victims = request.get("NodeNameToVictims") or {}
    try:
        uids = {node: tuple(_uid_of(victim) for victim in entry.get("Pods") or ()) for node, entry in victims.items()}
        violations = {node: int(entry.get("NumPDBViolations") or 0) for node, entry in victims.items()}
    except _UNREADABLE as error:
        raise Malformed("coda: the victims of the request cannot be read") from error
    return Preemption(pod=pod, uids_by_node=uids, budget_violations_by_node=violations)


def _uid_of(victim: Json) -> str:
    """The uid of a victim, sent alone or with its whole pod."""
    uid = victim["UID"] if "UID" in victim else victim["metadata"]["uid"]
    if not isinstance(uid, str):
        raise TypeError("a uid must be a string")
    return uid


def _request_of(body: bytes) -> Json:
    if len(body) > LARGE_BYTES and sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise Malformed(f"coda: the request has more than {MOST_VALUES} values")
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"coda: the request is not JSON: {error}") from error
    if not isinstance(request, dict) or not isinstance(request.get("Pod"), dict):
        raise Malformed("coda: the request has no Pod object")
    return request


def _pod_of(request: Json) -> tuple[Pod, int]:
    """Return the pod that asks, and its resourceVersion."""
    try:
        pod, version = pod_from_json(request["Pod"]), version_of(request["Pod"])
        if not all(isinstance(text, str) for text in (pod.id, pod.uid, pod.node or "")):
            raise TypeError("names and uid must be strings")
    except _UNREADABLE as error:
        raise Malformed(
            f"coda: the Pod of the request cannot be read: {type(error).__name__}: {error}"[:300]
        ) from error
    return pod, version


def _nodes_of(request: Json) -> tuple[list[str], tuple[orjson.Fragment, ...] | None]:
    """Return the offered names, and the Node objects if only these were sent."""
    names, nodes = request.get("NodeNames"), request.get("Nodes")
    if names is not None:
        if isinstance(names, list) and len(names) > MOST_NAMES:
            raise Malformed(f"coda: NodeNames has more than {MOST_NAMES} entries")
        if not isinstance(names, list):
            raise Malformed("coda: NodeNames is not a list of strings")
        try:
            "".join(names)  # the fastest check of every type
        except TypeError:
            raise Malformed("coda: NodeNames is not a list of strings") from None
        return names, None
    if nodes is None:
        return [], None
    try:
        items = nodes.get("items") or ()
        found = [item["metadata"]["name"] for item in items]
        if not all(isinstance(name, str) for name in found):
            raise TypeError("a node's name must be a string")
        ready = tuple(
            orjson.Fragment(orjson.dumps(item)) for item in items
        )  # orjson reads some values that it refuses to write
    except _UNREADABLE as error:
        raise Malformed("coda: Nodes is not a list of Node objects") from error
    return found, ready


def body_from_answer(answer: Answer, question: Question) -> bytes:
    """Return the filter's answer, in the form of the question: names or Node objects."""
    nodes: Json | None = None
    if question.items is not None:
        passed = set(answer.passed)
        items = [item for item, name in zip(question.items, question.names, strict=True) if name in passed]
        nodes = {"metadata": {}, "items": items}
    return orjson.dumps(
        {
            "Nodes": nodes,
            "NodeNames": None if nodes is not None else answer.passed,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": answer.refused,
            "Error": answer.error,
        }
    )


def body_from_error(sentence: str) -> bytes:
    """Return a filter answer without a verdict: kube-scheduler retries the pod with its error back-off."""
    return orjson.dumps(
        {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": None,
            "FailedAndUnresolvableNodes": None,
            "Error": sentence,
        }
    )


def body_from_scores(score_by_node: Mapping[str, int]) -> bytes:
    """Return the answer of prioritize. Scores must be whole numbers, or kube-scheduler drops the answer in silence; an
    empty answer is a list, never null."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in score_by_node.items()])


def body_from_victims(preemption: Preemption, nodes: Iterable[str]) -> bytes:
    """Return the answer of preempt: of the nodes asked about, those where the evictions may happen, unchanged."""
    victims = {
        node: {
            "Pods": [{"UID": uid} for uid in preemption.uids_by_node[node]],
            "NumPDBViolations": preemption.budget_violations_by_node[node],
        }
        for node in nodes
    }
    return orjson.dumps({"NodeNameToMetaVictims": victims})
