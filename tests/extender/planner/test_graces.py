"""How long an evicted pod may take to end."""

from __future__ import annotations

import pytest

from coda_extender.cpu_jobs.evictions import evict
from coda_extender.written import Written
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import pod_from_json
from tests.extender.cpu_pods import bind, gated, pod
from tests.extender.fake_api import FakeApi
from tests.extender.objects import PODS

DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 86_400}


@pytest.mark.parametrize(
    ("own_s", "before", "expected_s"),
    [
        pytest.param(30, {}, 30, id="its own"),
        pytest.param(3600, {}, 120, id="at most two minutes"),
        pytest.param(0, {}, 1, id="the kubelet stops it first"),
        pytest.param(30, DELETED, 30, id="somebody gave it a day"),
        pytest.param(30, DELETED | {"deletionGracePeriodSeconds": 5}, 5, id="somebody gave it less"),
    ],
)
async def test_an_evicted_pod_has_its_own_grace_and_two_minutes_at_most(
    own_s: int, before: Json, expected_s: int
) -> None:
    api = FakeApi()
    api.set(PODS, gated("work", cpu=1))
    bind(api, "work")
    api.change(f"{PODS}/work", lambda item: item["spec"].update(terminationGracePeriodSeconds=own_s))
    api.change(f"{PODS}/work", lambda item: item["metadata"].update(before))
    assert await evict(api, pod_from_json(pod(api, "work"))) == (Written.DONE, "")
    assert pod(api, "work")["metadata"]["deletionGracePeriodSeconds"] == expected_s
