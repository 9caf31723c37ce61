"""A CPU job that kube-scheduler refuses on one node is placed on another one, and its user is told why."""

from __future__ import annotations

import pytest

from coda.model import JobId, WaitCode
from coda.model.decision import WaitReason
from coda.placements.lingering_use import GIVEN_UP_S, LOOKED_ON_S
from coda_extender.cpu_jobs.pod_reasons import PodReasons
from coda_extender.cpu_jobs.stuck_pods import StuckPods
from coda_extender.planner_process import ChangedRefusals
from coda_extender.planner_process.messages import RefusedAlike
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.node_terms import pin_of
from coda_kube.refused_nodes import FIRST_PAUSE_S, FIRST_S
from tests.extender.cpu_pods import OWNER, events, evictions, gated, is_released, pod
from tests.extender.fake_api import FakeApi
from tests.extender.objects import NODES, PODS, given_up, node_json, pod_json
from tests.extender.replicas import Replica, replica

REPELS = "node(s) didn't satisfy existing pods anti-affinity rules"
REPELLED = given_up(message=f"0/2 nodes are available: 1 {REPELS}, 1 node(s) didn't satisfy plugin(s) [NodeAffinity].")


class Refusals:
    """One replica, the time of its StuckPods, and an owner that makes a pod for each one that is evicted."""

    def __init__(self, api: FakeApi, one: Replica) -> None:
        self.api, self.one, self.now_s = api, one, 100.0
        self.stuck = StuckPods(api, one.cluster, one.metrics, lambda: True, lambda: self.now_s)
        self.now_s += LOOKED_ON_S

    async def released(self, name: str, owners: list[Json] | None = None) -> str:
        """Make a pod; returns the node that it is released to."""
        self.api.set(PODS, gated(name, cpu=1, ownerReferences=[OWNER] if owners is None else owners))
        await self.api.until(lambda: is_released(self.api, name))
        return pin_of(pod(self.api, name)["spec"]) or ""

    async def refuse(self, name: str) -> None:
        self.api.change(f"{PODS}/{name}", lambda item: item.update(status=REPELLED))
        await self.api.until(lambda: self.one.cluster.state.pod_by_id[f"default/{name}"].given_up)
        await self.stuck.end_stuck()
        self.now_s += GIVEN_UP_S
        await self.stuck.end_stuck()

    def remove(self, name: str) -> None:
        self.api.remove(f"{PODS}/{name}")


@pytest.fixture
async def api() -> FakeApi:
    """Two nodes, of which n1 is the fuller one."""
    api = FakeApi()
    for name in ("n1", "n2"):
        api.set(NODES, node_json(name))
    api.set(PODS, pod_json("foreign", node="n1", cpu="4"))
    return api


async def test_the_next_pod_of_the_owner_goes_elsewhere_and_later_there_again(api: FakeApi) -> None:
    async with replica(api) as one:
        refusals = Refusals(api, one)
        assert await refusals.released("web-1") == "n1"
        await refusals.refuse("web-1")
        assert evictions(api) == ["web-1"]
        refusals.remove("web-1")
        assert await refusals.released("web-2") == "n2"
        assert await refusals.released("other", [OWNER | {"uid": "uid-other"}]) == "n1"
        refusals.now_s += FIRST_S
        await refusals.stuck.end_stuck()
        assert await refusals.released("web-3") == "n1"
        (told,) = [event["message"] for event in events(api) if event["reason"] == "PlaceLost"]
        assert f"n1 any more (kube-scheduler: {REPELS})" in told


async def test_who_is_refused_again_and_again_waits_longer_and_withholds_nothing(api: FakeApi) -> None:
    async with replica(api) as one:
        refusals = Refusals(api, one)
        for name, node in (("web-1", "n1"), ("web-2", "n2")):
            assert await refusals.released(name) == node
            await refusals.refuse(name)
            if name == "web-1":
                refusals.now_s += FIRST_PAUSE_S - GIVEN_UP_S - 1  # the next one is refused within the pause
                refusals.remove(name)
        assert evictions(api) == ["web-1"]
        assert [*one.ask(pod_json("large", cpu="48"), ["n2"]).passed] == ["n2"]
        refusals.now_s += 1
        await refusals.stuck.end_stuck()
        assert evictions(api) == ["web-1", "web-2"]


async def test_a_pod_that_waits_out_its_pause_is_not_evicted_because_coda_refuses_it_meanwhile(api: FakeApi) -> None:
    """What repelled it has left, so kube-scheduler asks the extender, which knows no placement of it any more."""
    async with replica(api) as one:
        refusals = Refusals(api, one)
        for name, node in (("web-1", "n1"), ("web-2", "n2")):
            assert await refusals.released(name) == node
            await refusals.refuse(name)
            if name == "web-1":
                refusals.now_s += FIRST_PAUSE_S - GIVEN_UP_S - 3
                refusals.remove(name)
        (refused,) = one.ask(pod(api, "web-2"), ["n2"]).refused.values()
        said = f"0/2 nodes are available: 1 {refused}, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        api.change(f"{PODS}/web-2", lambda item: item.update(status=given_up(message=said)))
        await api.until(lambda: said in str(one.cluster.pods.by_key["default/web-2"]))
        before = one.cluster.state.version
        for _ in range(2):
            await refusals.stuck.end_stuck()
        assert evictions(api) == ["web-1"]
        assert one.cluster.state.version == before  # a look at those that wait is no news for the planner
        refusals.now_s += 3
        await refusals.stuck.end_stuck()
        assert evictions(api) == ["web-1", "web-2"]


async def test_of_a_node_that_takes_no_pods_nothing_is_remembered(api: FakeApi) -> None:
    async with replica(api) as one:
        refusals = Refusals(api, one)
        assert await refusals.released("web-1") == "n1"
        api.change(f"{NODES}/n1", lambda item: item["spec"].update(unschedulable=True))
        await api.until(lambda: (node := one.cluster.state.node("n1")) is not None and not node.schedulable)
        await refusals.refuse("web-1")
        assert evictions(api) == ["web-1"]
        refusals.remove("web-1")
        api.change(f"{NODES}/n1", lambda item: item["spec"].pop("unschedulable"))
        await api.until(lambda: (node := one.cluster.state.node("n1")) is not None and node.schedulable)
        assert await refusals.released("web-2") == "n1"


async def test_a_bare_pod_is_told_the_words_of_kube_scheduler(api: FakeApi) -> None:
    async with replica(api) as one:
        refusals = Refusals(api, one)
        await refusals.released("bare", [])
        await refusals.refuse("bare")
        await api.until(lambda: bool(events(api)))
        (told,) = [event["message"] for event in events(api) if event["reason"] == "PlaceLost"]
        assert f"(kube-scheduler: {REPELS}), and nobody makes it anew" in told


async def test_pods_that_avoid_every_node_wait_and_say_who_refused_them(api: FakeApi) -> None:
    async with replica(api) as one:
        refusals = Refusals(api, one)
        for name in ("web-1", "web-2"):
            await refusals.released(name)
            await refusals.refuse(name)
            refusals.now_s += FIRST_PAUSE_S
            await refusals.stuck.end_stuck()
            refusals.remove(name)
        api.set(PODS, gated("web-3", cpu=1, ownerReferences=[OWNER]))
        job = JobId("default/pod/web-3")
        await api.until(lambda: (known := one.cluster.state.job(job)) is not None and known.avoid == {"n1", "n2"})
        reasons = PodReasons(api, one.cluster, lambda: 1000.0)
        reason = WaitReason(code=WaitCode.INSUFFICIENT_RESOURCES, message="2 nodes avoided")
        reasons.change_refusals(ChangedRefusals(groups=(RefusedAlike(1, reason, (job,)),)))
        await reasons.tell()
        await reasons.tell()
        told = [event["message"] for event in events(api) if event["reason"] == reason.code.value]
        assert f"waits: 2 nodes avoided; kube-scheduler refused pods of its owner on n1 and n2 ({REPELS})" in told[-1]
        assert not is_released(api, "web-3")
        refusals.now_s += FIRST_S
        await refusals.stuck.end_stuck()
        await api.until(lambda: is_released(api, "web-3"))
