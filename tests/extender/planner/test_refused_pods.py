"""Pods whose release is refused hold up no others, and their users hear of it."""

from __future__ import annotations

import time

import pytest

from coda.cache.judging_budget import CPU_STARTS
from coda.model import JobId
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.pod_writer import MOST_RELEASES
from coda_extender.metrics import Metrics
from coda_extender.planner.write_failures import JobsLeftOut
from coda_extender.planner_process.answering import Answering
from coda_extender.written import Written
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
    monkeypatch.setattr("coda.cache.judging_budget.CPU_STARTS", 4)
    monkeypatch.setattr("tests.extender.deciders.Answering", lambda: Answering(time.thread_time))  # as the process
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
        await api.until(lambda: all(is_released(api, f"honest-{number}") for number in range(4)))
        await api.until(lambda: bool(events(api)))
        assert one.count("coda_planner_unwritable_jobs") > 0
    (event, *_) = events(api)
    assert (event["reason"], event["involvedObject"]["kind"]) == ("StatusUnwritable", "Pod")
    assert event["involvedObject"]["name"].startswith("refused-")
    assert str(REFUSED) in event["message"]


@pytest.mark.parametrize(
    ("works", "longest_s"), [("default/train", 30.0), ("default/pod/other", 300.0)], ids=["another kind", "a release"]
)
def test_a_missing_right_costs_half_a_minute_and_a_refused_pod_five(works: str, longest_s: float) -> None:
    """Whether others' releases work tells the two apart; other writes say nothing of a right that is missing."""
    now_s, api, metrics = 100.0, FakeApi(), Metrics()
    cluster = ExtenderCluster(api, in_flight_limit_s=30.0)
    item = gated("work", cpu=1)
    item["metadata"]["resourceVersion"] = "1"
    cluster.state.on_pod(None, item)
    left_out, job, pauses_s = JobsLeftOut(api, cluster, metrics, lambda: now_s), JobId("default/pod/work"), []
    left_out._tell = lambda *_, **__: None  # type: ignore[method-assign]  # no loop runs
    for _ in range(12):
        left_out.note(job, Written.REFUSED, "no")
        left_out.note(JobId(works), Written.DONE, "")
        pauses_s.append((left_out.next_s() or now_s) - now_s)
        now_s += pauses_s[-1] + 1.0
        left_out.admit_due()
    assert pauses_s[:2] == [0.0, 2.0]
    assert pauses_s[-1] == longest_s


def test_a_cycle_decides_more_than_is_written_of_it() -> None:
    """So that those whose releases fail leave places for others."""
    assert CPU_STARTS >= 2 * MOST_RELEASES
