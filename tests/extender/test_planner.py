import asyncio
import time
from typing import Any

import pytest

from coda.errors import Outage
from coda_extender.guard import NOT_LEADER
from coda_kube.client import Json
from coda_kube.quantities import time_from_seconds
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, PODS, given_up, job_json, node_json, placement, pod_json, rank_json
from tests.extender.replicas import Wire, replica


def status(api: FakeApi, job: str) -> Json:
    found: Json = api.item(f"{JOBS}/{job}")["status"]
    return found


def plan_of(api: FakeApi, job: str) -> Json:
    return status(api, job).get("placement") or {}


def state_of(api: FakeApi, job: str) -> str | None:
    return plan_of(api, job).get("state")


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


async def test_commits_a_gang_and_then_releases_it(api: FakeApi) -> None:
    for name in ("n1", "n2"):
        api.set(NODES, node_json(name))
    api.set(JOBS, job_json("gang", replicas=2))
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    first, second = [call.body["status"]["placement"] for call in api.writes()]
    assert (first["state"], second["state"]) == ("Committed", "Released")
    assert sorted(second["nodes"]) == ["n1", "n2"]
    assert second | {"state": "Committed"} == first
    assert (first["attempt"], first["generation"], first["epoch"], first["cpusPerReplica"]) == (1, 1, 1, 4)


async def test_a_job_that_cannot_start_is_told_why_once(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", gpus=4))
    api.set(JOBS, job_json("large"))
    async with replica(api):
        await api.until(lambda: "pending" in status(api, "large"))
        api.set(NODES, node_json("n2", gpus=2))
        api.set(JOBS, job_json("small", gpus=2))
        await api.until(lambda: state_of(api, "small") == "Released")
        await asyncio.sleep(0.05)
    about_large = [call for call in api.writes() if "/large/" in call.path]
    assert len(about_large) == 1
    pending = status(api, "large")["pending"]
    assert pending["code"] == "NeverFits"
    assert "8" in pending["message"]


async def test_the_reason_goes_when_the_job_starts(api: FakeApi) -> None:
    api.set(JOBS, job_json("gang"))
    async with replica(api):
        await api.until(lambda: "pending" in status(api, "gang"))
        api.set(NODES, node_json("n1"))
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert "pending" not in status(api, "gang")


async def test_since_is_kept_while_the_code_stays(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(PODS, pod_json("foreign", gpus=8, cpu="1", node="n1"))
    since = time_from_seconds(1_700_000_123)
    told: Json = {"code": "InsufficientGPUs", "message": "old words", "since": since, "numbers": {}, "holders": []}
    api.set(JOBS, job_json("gang", pending=told))
    async with replica(api):
        await api.until(lambda: status(api, "gang")["pending"]["message"] != "old words")
    pending = status(api, "gang")["pending"]
    assert (pending["code"], pending["since"]) == ("InsufficientGPUs", since)


async def test_a_suspended_job_keeps_no_reason(api: FakeApi) -> None:
    stale = placement("gone", attempt=1)
    told: Json = {"code": "InsufficientGPUs", "message": "old", "since": time_from_seconds(0)}
    api.set(JOBS, job_json("gang", phase="Suspended", attempt=2, placement=stale, pending=told))
    async with replica(api):
        await api.until(lambda: "pending" not in status(api, "gang"))
    assert plan_of(api, "gang") == stale


async def test_somebody_who_writes_first_causes_another_round(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang"))

    def interfere(call: Call) -> None:
        if call.verb == "apply":
            api.before = None
            api.change(f"{JOBS}/gang", lambda item: item["status"].update(message="written first"))

    api.before = interfere
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        assert one.count("coda_planner_refused_writes_total", reason="conflict") == 1
    assert status(api, "gang")["message"] == "written first"


async def test_a_gang_edited_while_it_is_decided_on_is_not_committed_as_it_was(api: FakeApi) -> None:
    for name in ("n1", "n2"):
        api.set(NODES, node_json(name))
    api.set(JOBS, job_json("gang", replicas=2))

    def edit(call: Call) -> None:
        if call.verb == "apply":
            api.before = None
            api.change(f"{JOBS}/gang", shrink)

    def shrink(item: Json) -> None:
        item["spec"]["replicas"] = 1
        item["metadata"]["generation"] = item["status"]["observedGeneration"] = 2

    api.before = edit
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert len(plan_of(api, "gang")["nodes"]) == 1
    assert plan_of(api, "gang")["generation"] == 2


async def test_an_outage_is_waited_out(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang"))
    failures = iter([Outage("HTTP 500: no leader"), Outage("HTTP 503: overloaded")])

    def fail(call: Call) -> None:
        if call.verb == "apply" and (error := next(failures, None)) is not None:
            raise error

    api.before = fail
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_a_job_backing_off_says_so_and_starts_when_it_is_over(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    not_before_s = time.time() + 0.4
    api.set(JOBS, job_json("gang", attempt=2, notBefore=time_from_seconds(not_before_s)))
    async with replica(api):
        await api.until(lambda: status(api, "gang").get("pending", {}).get("code") == "BackingOff")
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert time.time() >= not_before_s - 0.001


async def test_nothing_is_asked_or_written_while_nothing_changes(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("runs"))
    api.set(JOBS, job_json("waits", replicas=4))
    async with replica(api):
        await api.until(lambda: state_of(api, "runs") == "Released" and "pending" in status(api, "waits"))
        await asyncio.sleep(0.05)
        api.calls.clear()
        await asyncio.sleep(0.3)
        assert {call.path.split("/")[-2] for call in api.calls} == {"leases"}


# --- plans of other leaders -------------------------------------------------------------------------------------------


async def test_adopts_a_plan_that_still_fits_and_changes_nothing_but_its_epoch(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(NODES, node_json("n2"))
    before = placement("n2", "n1", epoch=0)
    api.set(JOBS, job_json("gang", replicas=2, placement=before))
    api.set(PODS, rank_json("gang", 0, "n2", node="n2"))
    async with replica(api):
        await api.until(lambda: plan_of(api, "gang")["epoch"] == 1)
    assert plan_of(api, "gang") == before | {"epoch": 1}


async def test_releases_what_an_earlier_leader_only_committed(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    before = placement("n1", epoch=0, state="Committed")
    api.set(JOBS, job_json("gang", placement=before))
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert plan_of(api, "gang") == before | {"epoch": 1, "state": "Released"}


async def test_drops_an_earlier_leaders_plan_whose_node_is_gone(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang", phase="Launched", placement=placement("gone", epoch=0)))
    async with replica(api) as one:
        await api.until(lambda: "placement" not in status(api, "gang"))
        assert one.count("coda_planner_dropped_plans_total", reason="NODE_GONE") == 1


async def test_of_two_plans_for_the_same_room_the_older_is_adopted(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    older = placement("n1", epoch=0, plan="older")
    younger = placement("n1", epoch=0, plan="younger") | {"committedTime": time_from_seconds(1_700_000_001)}
    api.set(JOBS, job_json("a", phase="Launched", placement=younger))
    api.set(JOBS, job_json("b", phase="Launched", placement=older))
    async with replica(api):
        await api.until(lambda: not plan_of(api, "a") and plan_of(api, "b").get("epoch") == 1)


async def test_a_late_write_of_a_stale_leader_is_adopted_or_dropped_too(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("fits"))
    async with replica(api):
        await api.until(lambda: state_of(api, "fits") == "Released")
        late = placement("n1", epoch=0, plan="late")
        api.set(JOBS, job_json("late", placement=late))
        await api.until(lambda: not plan_of(api, "late"))
    assert state_of(api, "fits") == "Released"


async def test_a_plan_committed_long_ago_is_dropped_and_made_anew(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang", placement=placement("n1", epoch=0, state="Committed", plan="old", deadline_s=1.0)))
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        assert one.count("coda_planner_dropped_plans_total", reason="LATE") == 1
    assert plan_of(api, "gang")["planId"] != "old"


# --- foreign pods -----------------------------------------------------------------------------------------------------


def committed_under_a_pod_in_flight(api: FakeApi, ask: Any) -> dict[str, Any]:
    """Between the decision and its commit a foreign pod passes the filter for the planned node."""
    seen: dict[str, Any] = {}

    def pass_filter(call: Call) -> None:
        if call.verb == "apply":
            api.before = None
            seen["answer"] = ask(["n1"])

    api.before = pass_filter
    return seen


async def test_release_waits_for_a_foreign_pod_that_passed_the_filter_before_the_commit(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with replica(api, takeover_limit_s=0.0) as one:
        seen = committed_under_a_pod_in_flight(api, lambda names: one.ask(pod, names))
        await one.cluster.synced()
        api.set(NODES, node_json("n1"))
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Committed")
        assert seen["answer"].passed == ["n1"]
        await asyncio.sleep(0.1)
        assert state_of(api, "gang") == "Committed"
        api.change(f"{PODS}/foreign", lambda item: item.update(status=given_up()))
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_a_plan_whose_place_a_foreign_pod_took_is_dropped_and_made_anew_elsewhere(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with replica(api, takeover_limit_s=0.0) as one:
        committed_under_a_pod_in_flight(api, lambda names: one.ask(pod, names))
        await one.cluster.synced()
        api.set(NODES, node_json("n1"))
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Committed")
        api.change(f"{PODS}/foreign", lambda item: item["spec"].update(nodeName="n1"))
        await api.until(lambda: "placement" not in status(api, "gang"))
        api.set(NODES, node_json("n2"))
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert plan_of(api, "gang")["nodes"] == ["n2"]


async def test_a_foreign_pod_that_never_settles_costs_the_plan_not_the_gang(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with replica(api, takeover_limit_s=0.0, settle_limit_s=0.1) as one:
        committed_under_a_pod_in_flight(api, lambda names: one.ask(pod, names))
        await one.cluster.synced()
        api.set(NODES, node_json("n1"))
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Committed")
        api.set(NODES, node_json("n2"))
        await api.until(lambda: plan_of(api, "gang").get("nodes") == ["n2"])


async def test_after_a_failover_unbound_pods_count_everywhere_for_a_while(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(PODS, pod_json("foreign", gpus=1))
    api.set(PODS, pod_json("of another scheduler".replace(" ", "-"), gpus=1, scheduler="other"))
    api.set(JOBS, job_json("gang"))
    started_s = time.monotonic()
    async with replica(api, takeover_limit_s=0.4):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert time.monotonic() - started_s >= 0.4


# --- leaders ----------------------------------------------------------------------------------------------------------


async def test_a_leader_that_cannot_renew_its_lease_writes_nothing_more_and_another_takes_over(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    wire = Wire(api)
    async with replica(api, wire=wire) as one:
        await api.until(one.planner.leads)
        wire.is_cut = True
        deadline_s = time.monotonic() + 2
        while one.planner.leads():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        api.set(JOBS, job_json("gang"))
        await asyncio.sleep(0.2)
        assert api.writes() == []
        async with replica(api, "two") as two:
            await api.until(lambda: state_of(api, "gang") == "Released")
            assert two.planner.leads()
            assert not one.planner.leads()
    assert plan_of(api, "gang")["epoch"] == 2


async def test_a_leader_that_stops_gives_the_lease_up_at_once(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    async with replica(api, "one") as one:
        await api.until(one.planner.leads)
    api.set(JOBS, job_json("gang"))
    async with replica(api, "two"):
        await api.until(lambda: state_of(api, "gang") == "Released", timeout_s=2)
    assert NOT_LEADER == "coda: not the leader"


async def test_the_leader_takes_the_label_from_the_others(api: FakeApi) -> None:
    pods = "/api/v1/namespaces/coda-system/pods"
    labels = {"app.kubernetes.io/component": "extender"}
    for name, mark in (("ext-a", {"coda.scheduler/leader": "true"}), ("ext-b", {})):
        api.set(pods, pod_json(name, metadata={"labels": labels | mark, "namespace": "coda-system"}))
    async with replica(api, pod="ext-b"):
        await api.until(lambda: "coda.scheduler/leader" in api.item(f"{pods}/ext-b")["metadata"]["labels"])
    assert api.item(f"{pods}/ext-b")["metadata"]["labels"]["coda.scheduler/leader"] == "true"
    assert "coda.scheduler/leader" not in api.item(f"{pods}/ext-a")["metadata"]["labels"]
