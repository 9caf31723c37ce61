"""The reconciler on an API server in memory: a gang's whole life, and what others do to it meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import JOBS, PODS, SERVICES, FakeCluster, clock
from tests.operator_tests.operators import CONFIG, operator
from tests.operator_tests.rest_of_cluster import plan_json, rest_of_cluster


def reasons(api: FakeCluster) -> list[str]:
    return [event["reason"] for _, event in api.history("events")]


async def reaches(api: FakeCluster, job: str, phase: str, *, within_s: float = 60.0, **fields: Any) -> Json:
    """The status of the job once it has this phase and these fields."""
    wanted = {"phase": phase, **fields}
    await api.until(lambda: wanted.items() <= api.status(job).items(), timeout_s=within_s)
    return api.status(job)


async def test_a_gang_from_yaml_to_its_end() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api) as process:
        job = api.submit("bert", replicas=3)
        await api.until(lambda: "Succeeded" in reasons(api))
        assert process.count("coda_operator_attempts_ended_total", reason="Succeeded") == 1
        assert process.count("coda_jobs", phase="Succeeded") == 1
    assert api.item(f"{SERVICES}/bert")["spec"]["clusterIP"] == "None"
    assert list(api.pods()) == ["bert-1-0", "bert-1-1", "bert-1-2"]
    assert api.item(job)["metadata"]["finalizers"] == ["coda.scheduler/operator"]
    assert reasons(api) == ["Running", "Succeeded"]


def phases(api: FakeCluster) -> list[str]:
    """The phases the job was written in, in order."""
    written = [(job.get("status") or {}).get("phase") for _, job in api.history("trainingjobs")]
    return [phase for before, phase in itertools.pairwise(written) if phase and phase != before]


@pytest.mark.parametrize(
    ("passing_s", "expected"),
    [
        pytest.param(0.3, ["Queued", "Launched", "Running"], id="it starts sooner than that"),
        pytest.param(0.01, ["Queued", "Launched", "Starting", "Running"], id="it starts later"),
    ],
)
async def test_starting_is_written_only_when_running_does_not_follow_at_once(
    passing_s: float, expected: list[str]
) -> None:
    """Pods start 0.1 s after they are bound."""
    api = FakeCluster()
    config = replace(CONFIG, passing_s=passing_s)
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest, operator(api, config=config):
        rest.binds = False
        job = api.submit()
        await reaches(api, job, "Launched")
        rest.binds = True
        rest.act()
        await reaches(api, job, "Running")
    assert phases(api) == expected


async def test_a_failed_rank_restarts_the_whole_gang_after_its_back_off() -> None:
    api = FakeCluster()
    fails_once = lambda attempt, rank: 1 if (attempt, rank) == (1, 1) else 0  # noqa: E731 - reads as a value
    async with rest_of_cluster(api, exit_code=fails_once), operator(api):
        job = api.submit(replicas=2)
        failed = await reaches(api, job, "Queued", attempt=2)
        begun_s = clock()
        done = await reaches(api, job, "Succeeded")
    assert (failed["reason"], failed["failures"]) == ("RankFailed", 1)
    assert clock() - begun_s >= CONFIG.failure_backoff_s - 1
    assert (done["attempt"], done["disruptions"]) == (2, 0)


async def test_a_job_goes_only_when_its_pods_are_gone() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api):
        job = api.submit()
        await reaches(api, job, "Running")
        api.end(job)
        await api.until(lambda: not api.exists(job))
        assert api.pods() == {}


async def test_a_job_on_a_lost_node_can_be_deleted() -> None:
    """Nothing happens any more at the moment the node counts as lost: only a look of our own can end the wait."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest, operator(api):
        job = api.submit()
        await reaches(api, job, "Running")
        rest.lost_nodes.add("n1")
        api.change("/api/v1/nodes/n1", not_ready)
        api.end(job)
        await api.until(lambda: not api.exists(job), timeout_s=CONFIG.node_loss_s + 5)


def not_ready(node: Json) -> None:
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]


async def test_somebodys_finalizer_on_a_pod_is_named() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api):
        job = api.submit("stuck")
        await reaches(api, job, "Running")
        api.change(f"{PODS}/stuck-1-1", lambda pod: pod["metadata"].update(finalizers=["example.com/keep"]))
        api.end(f"{PODS}/stuck-1-1")
        said = "; waits for pod stuck-1-1 on n1 to be gone: its finalizers example.com/keep"
        await api.until(lambda: api.status(job)["message"].endswith(said), timeout_s=60)
        api.change(f"{PODS}/stuck-1-1", lambda pod: pod["metadata"].pop("finalizers"))
        assert "waits for pod" not in (await reaches(api, job, "Queued"))["message"]


async def test_the_rank_that_cannot_start_is_told_as_it_goes_on_with_one_event_per_reason() -> None:
    api = FakeCluster()

    def waits(message: str) -> Json:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        return {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waiting}]}

    async with rest_of_cluster(api) as rest, operator(api):
        rest.binds = False
        job = api.submit()
        await reaches(api, job, "Launched")
        for said in ("back-off 10s", "back-off 20s"):
            api.change(f"{PODS}/job-1-1", lambda pod, said=said: pod.update(status=waits(said)))  # type: ignore[misc]
            told = "rank 1 cannot start: ImagePullBackOff: " + said
            await reaches(api, job, "Launched", reason="ImagePullBackOff", message=told, within_s=2)
        await asyncio.sleep(1)
        assert reasons(api) == ["Launched", "ImagePullBackOff"]


async def test_a_wiped_status_costs_an_attempt_and_starts_no_rank_twice() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api):
        job = api.submit()
        await reaches(api, job, "Running")
        api.change(job, lambda item: item.update(status={}))
        await reaches(api, job, "Running", attempt=2)
    assert "StatusLost" in reasons(api)


async def test_a_suspension_in_mid_launch_stops_the_creates() -> None:
    api = FakeCluster()

    def suspend_at_the_second_pod(call: Call) -> None:
        if call.verb == "create" and call.path == PODS and len(api.pods()) == 1:
            api.before = None
            api.edit(f"{JOBS}/job", suspend=True)

    api.before = suspend_at_the_second_pod
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=64)
        await reaches(api, job, "Suspended")
        created = [pod for event, pod in api.history("pods") if event == "ADDED"]
        assert len(created) < 32
        await api.until(lambda: api.pods() == {})
        api.edit(job, suspend=False)
        assert (await reaches(api, job, "Succeeded"))["attempt"] == 2


async def test_an_edit_in_mid_launch_never_mixes_two_plans() -> None:
    api = FakeCluster()

    def shrink_at_the_third_pod(call: Call) -> None:
        if call.verb == "create" and call.path == PODS and len(api.pods()) == 2:
            api.before = None
            api.edit(f"{JOBS}/job", replicas=3)

    api.before = shrink_at_the_third_pod
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=4)
        done = await reaches(api, job, "Succeeded")
    assert done["attempt"] == 2
    assert {name for name in api.pods() if "-2-" in name} == {"job-2-0", "job-2-1", "job-2-2"}


async def test_a_plan_made_anew_in_mid_launch_gets_pods_of_its_own() -> None:
    """A new planner dropped the plan and made another for the same attempt while the first pods were under way."""
    api = FakeCluster()

    def plan_anew(call: Call) -> None:
        if call.verb == "create" and call.path == PODS and len(api.pods()) == 2:
            api.before = None
            api.change(f"{JOBS}/job", lambda job: job["status"]["placement"].update(planId="other"))

    api.before = plan_anew
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=4)
        done = await reaches(api, job, "Succeeded")
    assert (done["attempt"], done["disruptions"]) == (2, 1)
    assert "PlanDropped" in reasons(api)


async def test_a_pod_that_vanishes_in_mid_launch_is_not_made_again() -> None:
    api = FakeCluster()

    def take_rank_zero_away(call: Call) -> None:
        if call.verb == "create" and call.path == PODS and len(api.pods()) == 3:
            api.before = None
            api.end(f"{PODS}/job-1-0", grace_s=0)

    api.before = take_rank_zero_away
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=4)
        done = await reaches(api, job, "Succeeded")
    assert done["attempt"] == 2
    created = [pod["metadata"]["name"] for event, pod in api.history("pods") if event == "ADDED"]
    assert created.count("job-1-0") == 1


async def test_a_stale_leaders_plan_waits_for_the_new_one() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        job = api.submit()
        await reaches(api, job, "Queued")
        api.change(job, lambda item: item["status"].update(placement=plan_json(item, plan_id="p", epoch=6)))
        await asyncio.sleep(5)
        assert api.pods() == {}
        api.change(job, lambda item: item["status"]["placement"].update(epoch=7))
        await reaches(api, job, "Succeeded")


async def test_a_namesake_does_not_inherit_pods_or_service() -> None:
    """The old job was torn away with its finalizer; its pods and its Service wait for the garbage collector."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest, operator(api):
        job = api.submit("twin")
        await reaches(api, job, "Running")
        old = api.item(job)["metadata"]["uid"]
        api.remove(job)
        api.submit("twin")
        await reaches(api, job, "Restarting", reason="PodRefused")
        assert "twin-1-0 exists and is not this job's" in api.status(job)["message"]
        rest.exit_code = lambda attempt, rank: 0
        await reaches(api, job, "Succeeded")
    service = api.item(f"{SERVICES}/twin")
    assert service["spec"]["selector"][LABEL_JOB_UID] != old
    assert service["spec"]["selector"][LABEL_JOB_UID] == api.item(job)["metadata"]["uid"]


async def test_somebody_elses_service_of_that_name_is_told_and_waited_for() -> None:
    api = FakeCluster()
    api.set(SERVICES, {"metadata": {"name": "job"}, "spec": {"clusterIP": "10.0.0.1"}})
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        refused = await reaches(api, job, "Queued", attempt=2)
        assert "a Service named job exists and is not this job's" in refused["message"]
        api.remove(f"{SERVICES}/job")
        await reaches(api, job, "Succeeded")
    assert "-1-" not in "".join(api.pods())


@pytest.mark.parametrize("finalizers", [[], ["example.com/other"]])
async def test_a_deleted_job_without_our_finalizer_is_left_alone(finalizers: list[str]) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api) as process:
        job = api.submit()
        api.change(job, lambda item: item["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
        api.change(job, lambda item: item["metadata"].update(finalizers=finalizers))
        await asyncio.sleep(60)
        assert api.writes() == []
        assert process.count("coda_operator_reconcile_errors_total") == 0


async def test_time_to_live_counts_from_the_end() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        job = api.submit(ttlSecondsAfterFinished=3600)
        await reaches(api, job, "Succeeded")
        ended_s = clock()
        await api.until(lambda: not api.exists(job), timeout_s=4000)
        assert clock() - ended_s == pytest.approx(3600, abs=2)


async def test_an_idle_cluster_is_not_asked_anything() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None, nodes=2) as rest, operator(api):
        await reaches(api, api.submit("runs"), "Running")
        rest.plans = False
        await reaches(api, api.submit("waits"), "Queued")
        await asyncio.sleep(5)
        asked = len(api.calls)
        await asyncio.sleep(1000)
        assert len(api.calls) == asked
