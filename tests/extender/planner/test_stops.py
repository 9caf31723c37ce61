"""A running job that is stopped for another: the order, the capacity that is withheld meanwhile, and the start."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from coda.errors import Outage
from coda.policy import ArraysConfig, PolicyConfig
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, placement, pod_json, rank_json
from tests.extender.replicas import placement_of, replica, state_of

IN_TIME = "2026-01-01T00:00:00Z"  # by whatever clock
CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(large_share=0.5))


@pytest.fixture
async def api() -> FakeApi:
    """n1 is the large sub-array's, with a small job as a guest. Of the other nodes n2 is full, and n3 has one GPU."""
    api = FakeApi()
    for name, gpus in (("n1", 8), ("n2", 8), ("n3", 1)):
        api.set(NODES, node_json(name, gpus=gpus))
    run(api, "guest", "n1", gpus=1)
    run(api, "resident", "n2", gpus=8)
    return api


def run(api: FakeApi, name: str, node: str, *, gpus: int) -> None:
    job = job_json(name, gpus=gpus, phase="Running", placement=placement(node, plan=f"of-{name}"))
    job["spec"]["resumable"] = True
    api.set(JOBS, job)
    api.set(PODS, rank_json(name, 0, node, node=node, plan=f"of-{name}", gpus=gpus))


def order_of(api: FakeApi, name: str) -> Json:
    return placement_of(api, name).get("stop") or {}


def wait_again(api: FakeApi, name: str) -> None:
    """As the operator does once the pods are gone."""
    api.remove(f"{PODS}/{name}-1-0")
    api.change(f"{JOBS}/{name}", lambda item: item["status"].update(phase="Queued", attempt=2, returned=True))


async def test_a_guest_is_ordered_to_stop_and_its_capacity_is_committed_at_once(api: FakeApi) -> None:
    async with replica(api, policy=CODA) as one:
        api.set(JOBS, job_json("large"))
        await api.until(lambda: bool(order_of(api, "guest")))
        assert (order_of(api, "guest")["cause"], order_of(api, "guest")["by"]) == ("Migrate", "default/large")
        assert placement_of(api, "guest")["nodes"] == ["n1"]  # the order is all that changed
        await api.until(lambda: state_of(api, "large") == "Committed")
        assert placement_of(api, "large")["nodes"] == ["n1"]
        assert order_of(api, "resident") == {}
        assert one.count("coda_planner_stops_total", cause="Migrate") == 1


async def test_the_placement_is_released_once_the_pods_are_gone(api: FakeApi) -> None:
    async with replica(api, policy=CODA, settle_limit_s=0.05) as one:
        api.set(JOBS, job_json("large"))
        await api.until(lambda: state_of(api, "large") == "Committed")
        api.change(f"{JOBS}/guest", lambda item: item["status"].update(phase="Restarting"))
        api.change(f"{PODS}/guest-1-0", lambda item: item["metadata"].update(deletionTimestamp=IN_TIME))
        api.set(JOBS, job_json("later", gpus=2))  # another cycle; the limit for foreign pods is over
        await api.until(lambda: bool(api.item(f"{JOBS}/later")["status"].get("pending")))
        assert state_of(api, "large") == "Committed"
        plan = placement_of(api, "large")["planId"]
        wait_again(api, "guest")
        await api.until(lambda: state_of(api, "large") == "Released")
        assert placement_of(api, "large")["planId"] == plan  # it was never dropped
        await api.until(lambda: state_of(api, "guest") == "Released")
        assert placement_of(api, "guest")["nodes"] == ["n3"]
        assert one.count("coda_planner_stops_total", cause="Migrate") == 1


async def test_foreign_pods_get_none_of_the_capacity_that_is_being_left(api: FakeApi) -> None:
    async with replica(api, policy=CODA) as one:
        api.set(JOBS, job_json("large"))
        await api.until(lambda: state_of(api, "large") == "Committed")
        wait_again(api, "guest")
        await api.until(lambda: state_of(api, "large") == "Released")
        answer = one.ask(pod_json("foreign", gpus=1), ["n1", "n2"])
        assert tuple(answer.passed) == ()


async def test_a_leader_that_comes_after_the_order_goes_on_from_there(api: FakeApi) -> None:
    stop = {"cause": "Migrate", "by": "default/large", "time": "2026-01-01T00:00:00Z"}
    api.change(f"{JOBS}/guest", lambda item: item["status"]["placement"].update(stop=stop))
    api.set(JOBS, job_json("large"))
    async with replica(api, policy=CODA) as one:
        await api.until(lambda: state_of(api, "large") == "Committed")
        wait_again(api, "guest")
        await api.until(lambda: state_of(api, "large") == "Released")
        assert one.count("coda_planner_stops_total", cause="Migrate") == 0


@pytest.mark.parametrize(
    ("phase", "attempt"),
    [
        pytest.param("Succeeded", 1, id="rank 0 succeeded, the others are still being deleted"),
        pytest.param("Failed", 1, id="its time was over, its pods are still being deleted"),
        pytest.param("Queued", 2, id="the news that its pods are gone is late"),
        pytest.param(None, 1, id="its object is gone before its pods"),
    ],
)
async def test_nobody_else_is_stopped_while_the_pods_are_seen(api: FakeApi, phase: str | None, attempt: int) -> None:
    api.set(NODES, node_json("n11"))  # of the large sub-array too: there is another guest who could be stopped
    run(api, "other", "n11", gpus=2)
    async with replica(api, policy=CODA):
        api.set(JOBS, job_json("large"))
        await api.until(lambda: state_of(api, "large") == "Committed")
        plan = placement_of(api, "large")
        assert (plan["nodes"], order_of(api, "other")) == (["n1"], {})
        api.change(f"{PODS}/guest-1-0", lambda item: item["metadata"].update(deletionTimestamp=IN_TIME))
        if phase is None:
            api.remove(f"{JOBS}/guest")
        else:
            api.change(f"{JOBS}/guest", lambda item: item["status"].update(phase=phase, attempt=attempt))
        api.set(JOBS, job_json("later", gpus=9))  # another cycle
        await api.until(lambda: bool(api.item(f"{JOBS}/later")["status"].get("pending")))
        assert placement_of(api, "large") == plan
        api.remove(f"{PODS}/guest-1-0")
        await api.until(lambda: state_of(api, "large") == "Released")
        assert placement_of(api, "large")["planId"] == plan["planId"]


@pytest.mark.parametrize(
    ("deleted", "after_s"),
    [
        pytest.param({"deletionTimestamp": IN_TIME, "deletionGracePeriodSeconds": 30}, 91.0, id="its kubelet is away"),
        pytest.param({"deletionTimestamp": IN_TIME, "deletionGracePeriodSeconds": 10**9}, 361.0, id="it has years"),
        pytest.param({}, 121.0, id="nobody deletes it"),
    ],
)
async def test_a_pod_that_does_not_go_is_counted_on_no_more(api: FakeApi, deleted: Json, after_s: float) -> None:
    """Times are counted from when the order and the deletion are seen: no other machine's clock matters."""
    now_s = 100.0
    async with replica(api, policy=CODA, clock=lambda: now_s) as one:
        api.set(JOBS, job_json("large"))
        await api.until(lambda: state_of(api, "large") == "Committed")
        api.change(f"{JOBS}/guest", lambda item: item["status"].update(phase="Restarting"))
        api.change(f"{PODS}/guest-1-0", lambda item: item["metadata"].update(deleted))
        await api.until(lambda: not deleted or one.cluster.state.pod_by_id["default/guest-1-0"].terminating)
        now_s += after_s
        api.change(f"{JOBS}/resident", lambda item: item["status"].update(phase="Succeeded"))
        api.remove(f"{PODS}/resident-1-0")
        await api.until(lambda: state_of(api, "large") == "Released")
        assert placement_of(api, "large")["nodes"] == ["n2"]


async def test_a_placement_on_capacity_that_is_not_left_in_time_is_decided_again_though_nothing_happens(
    api: FakeApi,
) -> None:
    async with replica(api, policy=replace(CODA, bind_deadline_s=0.2)) as one:
        api.set(JOBS, job_json("large"))
        await api.until(lambda: state_of(api, "large") == "Committed")
        plan = placement_of(api, "large")
        await api.until(lambda: placement_of(api, "large").get("planId") not in (None, plan["planId"]))
        assert placement_of(api, "large")["nodes"] == plan["nodes"]
        assert one.count("coda_planner_stops_total", cause="Migrate") == 1


async def test_a_placement_beside_capacity_that_is_left_has_no_limit_that_is_looked_at_again_and_again(
    api: FakeApi,
) -> None:
    """A gang waits for a foreign pod on one node, then also for a stopped job on the other."""
    api.change(f"{JOBS}/resident", lambda item: item["status"].update(phase="Succeeded"))
    api.remove(f"{PODS}/resident-1-0")
    async with replica(api, policy=CODA, settle_limit_s=60.0) as one:
        await api.until(lambda: one.planner.leads())
        api.set(PODS, pod_json("foreign", gpus=8))
        assert one.ask(api.item(f"{PODS}/foreign"), ["n2"]).passed
        mine = placement("n1", "n2", state="Committed", epoch=one.elector.epoch)
        api.set(JOBS, job_json("gang", replicas=2, gpus=2, placement=mine))
        api.set(JOBS, job_json("large", gpus=6))
        await api.until(lambda: state_of(api, "large") == "Committed")
        api.set(JOBS, job_json("later", gpus=9))  # another cycle
        await api.until(lambda: bool(api.item(f"{JOBS}/later")["status"].get("pending")))
        assert (state_of(api, "gang"), one.planner._placements.give_up_times_s()) == ("Committed", [])


async def test_a_guest_that_cannot_be_told_to_stop_keeps_nobody_from_starting(api: FakeApi) -> None:
    def fail(call: Call) -> None:
        if call.verb == "apply" and "/guest/" in call.path:
            raise Outage("HTTP 500: etcdserver: request is too large", may_have_worked=False)

    api.before = fail
    now_s = time.time()
    api.set(JOBS, job_json("large", queuedTime=time_from_seconds(now_s - 2)))
    api.set(JOBS, job_json("small", gpus=1, queuedTime=time_from_seconds(now_s - 1)))
    async with replica(api, policy=CODA):
        await api.until(lambda: state_of(api, "small") == "Released")


async def test_a_new_job_that_resumes_takes_the_place_of_one_that_was_served_longer(api: FakeApi) -> None:
    api.change(f"{JOBS}/guest", lambda item: item["spec"].update(resumable=False))
    now = time_from_seconds(time.time() - 5)
    async with replica(api, policy=CODA) as one:
        api.set(JOBS, job_json("patient", queuedTime=now))
        await api.until(lambda: bool(api.item(f"{JOBS}/patient")["status"].get("pending")))
        assert order_of(api, "resident") == {}
        new = job_json("new", queuedTime=now)
        api.set(JOBS, {**new, "spec": {**new["spec"], "resumable": True}})
        await api.until(lambda: bool(order_of(api, "resident")))
        assert (order_of(api, "resident")["cause"], order_of(api, "resident")["by"]) == ("Preempt", "default/new")
        api.remove(f"{PODS}/resident-1-0")
        served = {"phase": "Queued", "attempt": 2, "servedSeconds": 90_000, "queuedTime": now}
        api.change(f"{JOBS}/resident", lambda item: item["status"].update(served))
        await api.until(lambda: state_of(api, "new") == "Released")
        assert placement_of(api, "new")["nodes"] == ["n2"]
        await api.until(lambda: bool(api.item(f"{JOBS}/resident")["status"].get("pending")))
        assert one.count("coda_planner_stops_total", cause="Preempt") == 1


@pytest.mark.parametrize(
    ("asked_s", "limit_s", "notice_s"),
    [
        pytest.param(None, 120.0, None, id="it asks for none"),
        pytest.param(40, 120.0, 40, id="as it asks"),
        pytest.param(400, 120.0, 120, id="as much as the platform allows"),
        pytest.param(40, 0.0, None, id="the platform announces nothing"),
    ],
)
async def test_an_order_has_the_notice_that_the_job_asks_for(
    api: FakeApi, asked_s: int | None, limit_s: float, notice_s: int | None
) -> None:
    if asked_s is not None:
        api.change(f"{JOBS}/guest", lambda item: item["spec"].update(stopNoticeSeconds=asked_s))
    async with replica(api, policy=replace(CODA, stop_notice_limit_s=limit_s)):
        api.set(JOBS, job_json("large"))
        await api.until(lambda: bool(order_of(api, "guest")))
        assert order_of(api, "guest").get("noticeSeconds") == notice_s


async def test_the_capacity_of_a_job_that_was_told_is_waited_for_and_nobody_else_is_stopped(api: FakeApi) -> None:
    """Longer than a placement may wait otherwise, through a change of the leader; and it is decided once."""
    api.change(f"{JOBS}/guest", lambda item: item["spec"].update(stopNoticeSeconds=60))
    policy = replace(CODA, bind_deadline_s=2.0)
    async with replica(api, policy=policy):
        api.set(JOBS, job_json("large"))
        await api.until(lambda: state_of(api, "large") == "Committed")
    plan = placement_of(api, "large")["planId"]
    api.change(f"{JOBS}/guest", lambda item: item["status"].update(reason="Stopping"))
    await asyncio.sleep(policy.bind_deadline_s)
    async with replica(api, policy=policy) as one:
        api.set(JOBS, job_json("later", gpus=9))  # another cycle, after the deadline
        await api.until(lambda: bool(api.item(f"{JOBS}/later")["status"].get("pending")))
        assert (state_of(api, "large"), placement_of(api, "large")["planId"]) == ("Committed", plan)
        assert order_of(api, "resident") == {}
        wait_again(api, "guest")
        await api.until(lambda: state_of(api, "large") == "Released")
        assert placement_of(api, "large")["planId"] == plan
        assert one.count("coda_planner_stops_total", cause="Migrate") == 0


async def test_a_planner_does_not_spin_while_it_waits_for_a_notice(api: FakeApi) -> None:
    api.change(f"{JOBS}/guest", lambda item: item["spec"].update(stopNoticeSeconds=60))
    async with replica(api, policy=replace(CODA, bind_deadline_s=0.05)) as one:
        api.set(JOBS, job_json("large"))
        await api.until(lambda: state_of(api, "large") == "Committed")
        await asyncio.sleep(0.3)  # nothing happens: that is what is tested
        before = one.count("coda_planner_round_duration_seconds_count")
        await asyncio.sleep(0.3)
        assert 0 < before >= one.count("coda_planner_round_duration_seconds_count") - 1
