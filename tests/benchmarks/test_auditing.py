from collections import Counter
from typing import Any

import pytest

from rig.auditing import Request, by_kind, is_upkeep, request_from_json


def event(verb: str, resource: str, *, subresource: str = "", uri: str = "/") -> dict[str, Any]:
    return {
        "user": {"username": "system:serviceaccount:coda-system:coda-operator"},
        "verb": verb,
        "objectRef": {"resource": resource} | ({"subresource": subresource} if subresource else {}),
        "requestURI": uri,
    }


@pytest.mark.parametrize(
    ("seen", "resource"),
    [
        pytest.param(event("create", "pods"), "pods", id="a resource"),
        pytest.param(event("create", "pods", subresource="binding"), "pods/binding", id="its subresource"),
        pytest.param(event("create", "pods", uri="/api?dryRun=All"), "pods?dryRun=All", id="a dry run"),
        pytest.param({"user": {"username": "u"}, "verb": "get"}, "(no resource)", id="no resource at all"),
    ],
)
def test_tells_requests_apart(seen: dict[str, Any], resource: str) -> None:
    assert request_from_json(seen).resource == resource


def test_calls_coda_s_parts_by_their_names() -> None:
    assert request_from_json(event("create", "pods")).user == "coda-operator"


@pytest.mark.parametrize(
    ("verb", "resource", "upkeep"),
    [("watch", "pods", True), ("update", "leases", True), ("list", "pods", False), ("patch", "pods/status", False)],
)
def test_knows_what_goes_on_though_nothing_happens(verb: str, resource: str, upkeep: bool) -> None:
    assert is_upkeep(Request(user="coda-operator", verb=verb, resource=resource)) is upkeep


def test_lists_requests_per_job_the_most_frequent_first() -> None:
    requests = Counter(
        {Request(user="a", verb="get", resource="x"): 2, Request(user="b", verb="get", resource="x"): 10}
    )
    assert list(by_kind(requests, per=4).items()) == [("b get x", 2.5), ("a get x", 0.5)]
