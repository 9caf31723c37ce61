"""A job whose template only prefers nodes is told that this does not count."""

from __future__ import annotations

import pytest

from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

TERM = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["L4"]}]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": TERM}]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}


@pytest.mark.parametrize(
    ("affinity", "events"), [({}, 0), ({"nodeAffinity": REQUIRED}, 0), ({"nodeAffinity": REQUIRED | PREFERRED}, 1)]
)
async def test_one_event_of_an_attempt_says_that_preferences_do_not_count(affinity: Json, events: int) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        spec = {"affinity": affinity, "containers": [{"name": "main", "image": "x"}]}
        await reaches(api, api.submit(template={"spec": spec}), "Succeeded")
    told = [event for event in api.all("events") if event["reason"] == "PreferenceIgnored"]
    assert len(told) == events
    for event in told:
        assert event["type"] == "Warning"
        assert "preferred node affinity does not count" in event["message"]
