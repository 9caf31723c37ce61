"""What a CPU job waited for is written onto its pod with the release."""

from __future__ import annotations

import pytest

from coda.model import JobId, WaitCode
from coda.model.decision import WaitReason
from coda_extender.cpu_jobs.pod_waits import PRUNE_S, PodWaits
from coda_extender.planner_process import ChangedRefusals
from coda_extender.planner_process.messages import RefusedAlike
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.cpu_job import MOST_WAITS, release_patch, waits_from_json
from tests.extender.cpu_pods import bind, gated, is_released, pod
from tests.extender.fake_api import FakeApi
from tests.extender.objects import NODES, PODS, node_json
from tests.extender.replicas import Replica, replica
from tests.kube.objects.test_cpu_jobs import job, released

WORK = JobId("default/pod/work")
CORES, QUOTA = (WaitReason(code=code, message="") for code in (WaitCode.INSUFFICIENT_CPU, WaitCode.QUOTA_EXCEEDED))


@pytest.fixture
async def api() -> FakeApi:
    """One node of 48 cores."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


class Waits:
    """The accounts of a replica that does not lead, by a clock that a test sets."""

    def __init__(self, replica: Replica) -> None:
        self.now_s = 100.0
        self.accounts = PodWaits(replica.cluster, lambda: self.now_s)

    def refuse(self, reason: WaitReason | None, after_s: float) -> None:
        self.now_s += after_s
        groups = () if reason is None else (RefusedAlike(0, reason, (WORK,)),)
        self.accounts.change_refusals(ChangedRefusals(groups, () if reason is not None else (WORK,)))


async def test_each_cause_counts_for_as_long_as_it_was_the_reason(api: FakeApi) -> None:
    async with replica(api) as waiting:
        api.set(PODS, gated("work", cpu=90))
        await api.until(lambda: WORK in waiting.cluster.state.cpu_jobs)
        waits = Waits(waiting)
        waits.refuse(CORES, 0.0)
        waits.refuse(QUOTA, 7.0)
        waits.refuse(QUOTA, 1.0)  # other numbers
        waits.refuse(CORES, 4.0)
        waits.refuse(None, 3.0)  # it is started, and its place is taken
        waits.refuse(CORES, 50.0)
        waits.now_s += 2.0
        assert waits.accounts.of(WORK) == {"InsufficientCPU": 12.0, "QuotaExceeded": 5.0}


async def test_the_next_pod_of_a_name_has_waited_for_nothing(api: FakeApi) -> None:
    async with replica(api) as waiting:
        api.set(PODS, gated("work", cpu=90))
        await api.until(lambda: WORK in waiting.cluster.state.cpu_jobs)
        waits = Waits(waiting)
        waits.refuse(CORES, 0.0)
        api.remove(f"{PODS}/work")
        await api.until(lambda: WORK not in waiting.cluster.state.cpu_jobs)
        api.set(PODS, gated("work", cpu=90, uid="another"))
        await api.until(lambda: WORK in waiting.cluster.state.cpu_jobs)
        waits.now_s += 9.0
        assert waits.accounts.of(WORK) == {}
        waits.refuse(CORES, PRUNE_S)
        assert waits.accounts.of(WORK) == {"InsufficientCPU": 0.0}


async def test_a_release_says_what_the_pod_waited_for(api: FakeApi) -> None:
    async with replica(api):
        api.set(PODS, gated("first", cpu=40))
        await api.until(lambda: is_released(api, "first"))
        bind(api, "first")
        api.set(PODS, gated("second", cpu=40))
        await api.until(lambda: any(call.path.endswith("/events") for call in api.writes("create")))  # it was told why
        api.remove(f"{PODS}/first")
        await api.until(lambda: is_released(api, "second"))
        assert set(waits_from_json(pod(api, "second")["metadata"])) == {"InsufficientCPU"}
        assert waits_from_json(pod(api, "second")["metadata"])["InsufficientCPU"] >= 1.0


def test_a_pod_that_started_at_once_says_nothing_and_a_long_list_is_cut() -> None:
    def patched(waits: dict[str, float]) -> Json:
        waiting = job(released())
        assert waiting.placement is not None
        found: Json = release_patch({}, waiting, waiting.placement, version=1, waits=waits)["metadata"]
        return found

    assert "coda.scheduler/waits" not in patched({"InsufficientCPU": 0.4})["annotations"]
    many = {f"Code{number}": 10.0 + number for number in range(20)}
    assert waits_from_json(patched(many)) == dict(sorted(many.items(), key=lambda item: -item[1])[:MOST_WAITS])
