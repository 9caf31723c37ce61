"""Pods whose release is refused hold up no others, and their users hear of it."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Rejected
from tests.extender.cpu_pods import OTHER, OWNER, events, gated, is_released
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import NODES, PODS, node_json
from tests.extender.replicas import replica

REFUSED = Rejected(403, "Forbidden", "denied by a webhook")


def refuse(api: FakeApi, names: str) -> None:
    def before(call: Call) -> None:
        if call.verb == "patch" and names in call.path:
            raise REFUSED

    api.before = before


@pytest.mark.parametrize("theirs", ["/api/v1/namespaces/theirs/pods", PODS], ids=["a namespace's", "an owner's"])
async def test_many_refused_pods_let_a_later_one_start(monkeypatch: pytest.MonkeyPatch, theirs: str) -> None:
    monkeypatch.setattr("coda_extender.cpu_jobs.pod_writer.MOST_RELEASES", 2)
    api = FakeApi()
    api.set(NODES, node_json("n1", cpu=400))
    refuse(api, "/refused-")
    for number in range(60):
        owners = [OWNER] if theirs == PODS else []
        api.set(theirs, gated(f"refused-{number}", cpu=1, ownerReferences=owners))
    for number in range(4):
        later = f"2026-01-01T00:00:0{number + 1}Z"
        api.set(PODS, gated(f"honest-{number}", cpu=1, creationTimestamp=later, ownerReferences=[OTHER]))
    async with replica(api) as one:
        await api.until(lambda: all(is_released(api, f"honest-{number}") for number in range(4)), timeout_s=3.0)
        await api.until(lambda: bool(events(api)))
        assert one.count("coda_planner_unwritable_jobs") > 0
    (event, *_) = events(api)
    assert (event["reason"], event["involvedObject"]["kind"]) == ("StatusUnwritable", "Pod")
    assert event["involvedObject"]["name"].startswith("refused-")
    assert str(REFUSED) in event["message"]
