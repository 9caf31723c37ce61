"""Policies and webhooks that refuse for a while, jobs that are over, and events while the API server is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import PODS, SERVICES, FakeCluster, clock
from tests.operator_tests.operators import CONFIG, operator
from tests.operator_tests.rest_of_cluster import finish, pin_of, rest_of_cluster, start
from tests.operator_tests.test_accidents import events, never
from tests.operator_tests.test_lost_ranks import reaches, runs

DENIED = 'admission webhook "policy.example.com" denied the request: signature not verified'
INSECURE = 'pods "job-1-0" is forbidden: violates PodSecurity "restricted:latest": hostNetwork=true'


def deny(pod: Json) -> None:
    raise Rejected(403, "Forbidden", DENIED)


def forbid(pod: Json) -> None:
    raise Rejected(403, "Forbidden", INSECURE)


async def test_a_job_that_was_accepted_once_outlives_a_policy_that_fails_for_a_while() -> None:
    """The dry run of its second attempt is refused for ten minutes."""
    api = FakeCluster()
    fails_once = lambda attempt, rank: 1 if (attempt, rank) == (1, 1) else None  # noqa: E731 - reads as a value
    async with rest_of_cluster(api, exit_code=fails_once), operator(api):
        job = await runs(api)
        api.admit = deny
        await api.until(lambda: DENIED in api.status(job)["message"], timeout_s=60)
        assert api.status(job)["phase"] == "Restarting"
        await asyncio.sleep(600)
        api.admit = lambda pod: None
        await reaches(api, job, "Running", attempt=2)


@pytest.mark.parametrize("edits", [pytest.param(False, id="new"), pytest.param(True, id="edited while it waits")])
async def test_what_a_webhook_denies_is_final_only_after_ten_minutes(edits: bool) -> None:
    """Its registry may be away: applying the same manifest again would change nothing."""
    api = FakeCluster()
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        api.admit = (lambda pod: None) if edits else deny
        job = api.submit()
        if edits:
            await reaches(api, job, "Queued")
            await asyncio.sleep(3600)
            api.admit = deny
            api.edit(job, priority=1)
        await api.until(lambda: api.status(job).get("reason") == "NotAdmitted", timeout_s=10)
        assert DENIED in api.status(job)["message"]
        await asyncio.sleep(580)
        assert api.status(job)["reason"] == "NotAdmitted"
        await asyncio.sleep(60)
        assert (api.status(job)["phase"], api.status(job)["reason"]) == ("Failed", "TemplateRefused")
        assert DENIED in api.status(job)["message"]


async def test_a_job_starts_soon_after_a_webhook_denies_it_no_more_and_each_edit_has_its_ten_minutes() -> None:
    api = FakeCluster()
    api.admit = deny
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        await asyncio.sleep(700)
        assert api.status(job)["reason"] == "TemplateRefused"
        api.edit(job, priority=1)
        await asyncio.sleep(550)
        assert (api.status(job)["phase"], api.status(job)["reason"]) == ("Queued", "NotAdmitted")
        api.admit = lambda pod: None
        await api.until(lambda: api.status(job)["phase"] == "Succeeded", timeout_s=40)


async def test_a_template_that_was_never_accepted_fails_at_once() -> None:
    api = FakeCluster()
    api.admit = forbid
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        assert (await reaches(api, job, "Failed"))["reason"] == "TemplateRefused"


def accepted(status: Json) -> str:
    """What the condition says."""
    return str(next(entry["status"] for entry in status["conditions"] if entry["type"] == "Accepted"))


async def test_a_job_that_was_created_suspended_is_judged_when_it_is_resumed() -> None:
    api = FakeCluster()
    api.admit = forbid
    async with rest_of_cluster(api), operator(api):
        job = api.submit(suspend=True)
        assert accepted(await reaches(api, job, "Suspended")) == "False"
        api.edit(job, suspend=False)
        assert (await reaches(api, job, "Failed"))["reason"] == "TemplateRefused"
        api.admit = lambda pod: None
        api.edit(job, priority=1)
        await reaches(api, job, "Succeeded")


async def test_a_job_that_was_accepted_and_then_suspended_outlives_such_a_policy_too() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api)
        api.edit(job, suspend=True)
        assert accepted(await reaches(api, job, "Suspended")) == "True"
        api.admit = deny
        api.edit(job, suspend=False)
        await api.until(lambda: DENIED in api.status(job)["message"], timeout_s=60)
        await asyncio.sleep(600)
        api.admit = lambda pod: None
        await reaches(api, job, "Running", attempt=2)


async def test_a_template_that_was_mended_while_a_quota_is_full_says_that_it_waits_for_the_quota() -> None:
    api = FakeCluster()
    api.admit = forbid
    async with rest_of_cluster(api), operator(api) as process:
        job = api.submit()
        refused = await reaches(api, job, "Failed")
        await asyncio.sleep(100)
        api.admit = beyond_quota
        api.edit(job, priority=1)
        waits = await reaches(api, job, "Queued", reason="QuotaExceeded")
        assert "exceeded quota: team" in waits["message"]
        assert (accepted(waits), waits["observedGeneration"]) == ("False", refused["observedGeneration"])
        assert "completionTime" not in waits
        await asyncio.sleep(3600)
        assert (api.status(job)["phase"], api.status(job)["reason"]) == ("Queued", "QuotaExceeded")
        api.admit = forbid
        api.edit(job, priority=2)
        assert (await reaches(api, job, "Failed"))["reason"] == "TemplateRefused"
        api.admit = beyond_quota
        api.edit(job, priority=3)
        await reaches(api, job, "Queued", reason="QuotaExceeded")
        api.admit = lambda pod: None
        done = await reaches(api, job, "Succeeded")
        assert (done["attempt"], done["failures"], accepted(done)) == (1, 0, "True")
        assert process.count("coda_job_delay_seconds_total", cause="Coda") < 10
        assert 3500 < {wait["cause"]: wait["seconds"] for wait in done["delays"]["waits"]}["NamespaceQuota"] < 3700


def beyond_quota(pod: Json) -> None:
    raise Rejected(403, "Forbidden", 'pods "job-1-0" is forbidden: exceeded quota: team, requested: pods=1')


@pytest.mark.parametrize(
    ("own_s", "usual_s", "kept_s"),
    [
        pytest.param(None, 7 * 86400.0, 7 * 86400.0, id="the installation's time"),
        pytest.param(60, 7 * 86400.0, 60.0, id="its own time"),
        pytest.param(None, 0.0, None, id="for ever"),
    ],
)
async def test_a_finished_job_is_deleted_after_a_time(own_s: int | None, usual_s: float, kept_s: float | None) -> None:
    api = FakeCluster()
    spec: dict[str, Any] = {} if own_s is None else {"ttlSecondsAfterFinished": own_s}
    async with rest_of_cluster(api), operator(api, config=replace(CONFIG, finished_ttl_s=usual_s)):
        job = api.submit(**spec)
        await reaches(api, job, "Succeeded")
        ended_s = clock()
        if kept_s is None:
            await asyncio.sleep(30 * 86400.0)
            assert api.exists(job)
            return
        await api.until(lambda: not api.exists(job), timeout_s=kept_s + 60)
        assert clock() - ended_s >= kept_s - 2


MARKS = [
    pytest.param({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, id="Helm"),
    pytest.param({"annotations": {"meta.helm.sh/release-name": "train"}}, id="a Helm release"),
    pytest.param({"labels": {"kustomize.toolkit.fluxcd.io/name": "train"}}, id="Flux"),
    pytest.param({"labels": {"helm.toolkit.fluxcd.io/name": "train"}}, id="Flux with Helm"),
    pytest.param({"labels": {"argocd.argoproj.io/instance": "train"}}, id="Argo CD"),
    pytest.param({"labels": {"app.kubernetes.io/instance": "train"}}, id="Argo CD's default"),
    pytest.param({"annotations": {"argocd.argoproj.io/tracking-id": "train:x"}}, id="Argo CD by annotation"),
]


def label(item: dict[str, Any], **labels: str) -> None:
    item["metadata"].setdefault("labels", {}).update(labels)


@pytest.mark.parametrize("mark", MARKS)
async def test_a_finished_job_that_a_tool_would_make_again_stays_without_its_pods(mark: dict[str, Any]) -> None:
    """Also for an operator that begins later: the job would run again, by nobody's wish."""
    api = FakeCluster()
    async with rest_of_cluster(api):
        async with operator(api):
            job = api.submit()
            api.change(job, lambda item: item["metadata"].update(mark))
            await reaches(api, job, "Succeeded")
            await asyncio.sleep(7 * 86400.0 - 60)
            assert len(api.pods()) == 2
            await api.until(lambda: api.pods() == {}, timeout_s=120)
        async with operator(api):
            await asyncio.sleep(30 * 86400.0)
            before = len(api.calls)
            for touched in ("once", "twice", "again"):
                api.change(job, partial(label, touched=touched))
                await asyncio.sleep(60.0)
            lists = [call for call in api.calls[before:] if call.verb == "list" and call.path.endswith("/pods")]
            assert lists == []  # nothing is left of it, and that is known
        assert api.status(job)["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("metadata", "spec"),
    [
        pytest.param({}, {"ttlSecondsAfterFinished": 3600}, id="it says for how long it is kept"),
        pytest.param({"generateName": "job-"}, {}, id="nobody applies a job of this name again"),
        pytest.param({"labels": {"app.kubernetes.io/managed-by": "me"}}, {}, id="another tool"),
    ],
)
async def test_other_finished_jobs_go(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        job = api.submit(**spec)
        marked = {"labels": {"app.kubernetes.io/instance": "train"}} | metadata
        api.change(job, lambda item: item["metadata"].update(marked))
        await reaches(api, job, "Succeeded")
        await api.until(lambda: not api.exists(job), timeout_s=8 * 86400.0)


async def test_an_event_is_posted_once_the_api_server_is_back() -> None:
    api = FakeCluster()
    away = True

    def refuse_events(call: Call) -> None:
        if away and call.verb == "create" and call.path.endswith("/events"):
            raise Outage("POST: connection refused")

    api.before = refuse_events
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        await reaches(api, job, "Succeeded")
        await asyncio.sleep(300)
        assert events(api, job) == []
        away = False
        await api.until(lambda: events(api, job) == ["Running", "Succeeded"], timeout_s=60)


@pytest.mark.parametrize(
    ("changes", "reason", "named"),
    [
        pytest.param(
            {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
            "SchedulingGated",
            "scheduling gate kueue.x-k8s.io/admission",
            id="a gate",
        ),
        pytest.param({"schedulerName": "yunikorn"}, "OtherScheduler", "scheduler yunikorn", id="another scheduler"),
    ],
)
async def test_a_job_whose_pods_a_webhook_takes_over_holds_nothing_and_says_so(
    changes: Json, reason: str, named: str
) -> None:
    """As Kueue's integration of pods does, or YuniKorn's admission controller."""
    api = FakeCluster()
    api.admit = lambda pod: pod["spec"].update(changes)
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = api.submit()
        await api.until(lambda: api.status(job).get("reason") == reason)
        assert named in api.status(job)["message"]
        assert "leave namespace default out" in api.status(job)["message"]
        await asyncio.sleep(3600)
        assert (api.status(job).get("placement"), api.history("pods")) == (None, [])
        api.admit = lambda pod: None
        await reaches(api, job, "Running")


async def test_every_rank_has_a_name_if_the_job_wants_it() -> None:
    """MPI's and DeepSpeed's host files name all ranks; the rendezvous of torchrun needs only rank 0."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        await runs(api, name="usual")
        await runs(api, name="peers", dnsNames="AllRanks")
        assert api.item(f"{SERVICES}/usual")["spec"]["selector"]["coda.scheduler/rank"] == "0"
        assert list(api.item(f"{SERVICES}/peers")["spec"]["selector"]) == ["coda.scheduler/job-uid"]


async def test_rank_zero_ends_the_job_although_another_rank_never_starts() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        job = api.submit(successPolicy="RankZero", startDeadlineSeconds=600)
        await api.until(lambda: len(api.pods()) == 2)
        for name in api.pods():
            api.change(f"{PODS}/{name}", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))
        api.change(f"{PODS}/job-1-0", start)
        await reaches(api, job, "Starting")
        api.change(f"{PODS}/job-1-0", lambda pod: finish(pod, 0))
        done = await reaches(api, job, "Succeeded")
        assert (done["message"], done["failures"], "startTime" in done) == ("rank 0 succeeded", 0, False)
        await api.until(lambda: "deletionTimestamp" in api.pods()["job-1-1"]["metadata"])


def of_classes(operator: str, *classes: str) -> Json:
    scope = {"scopeName": "PriorityClass", "operator": operator, "values": list(classes)}
    return {"scopeSelector": {"matchExpressions": [scope]}}


@pytest.mark.parametrize(
    ("scopes", "given"),
    [
        pytest.param({"scopes": ["NotTerminating"]}, None, id="by its deadline"),
        pytest.param(of_classes("NotIn", "training"), None, id="not in a list, without a class"),
        pytest.param(of_classes("In", "usual"), "usual", id="in a list by the class that all pods get"),
    ],
)
async def test_a_gang_that_a_scoped_quota_stops_starts_no_rank(scopes: Json, given: str | None) -> None:
    """The API server would admit two of three ranks, which run at once."""
    api = FakeCluster()
    quota = {"metadata": {"name": "night"}, "spec": {"hard": {"pods": "2"}} | scopes, "status": {}}
    api.admit = lambda pod: None if given is None else pod["spec"].update(priorityClassName=given)
    async with rest_of_cluster(api, exit_code=never), operator(api):
        api.set("/api/v1/namespaces/default/resourcequotas", quota)
        job = api.submit(replicas=3)
        waits = await reaches(api, job, "Queued", attempt=4)
        assert waits["reason"] == "QuotaExceeded"
        assert "exceeded quota: night: the gang asks for 3 pods, 2 are left" in waits["message"]
        assert not [pod for _, pod in api.history("pods") if pod["status"]["phase"] == "Running"]


async def test_a_claim_that_does_not_exist_is_waited_for_and_named() -> None:
    api = FakeCluster()
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}], "volumes": volumes}}
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = api.submit(template=template)
        await api.until(lambda: api.status(job).get("reason") == "VolumeClaimMissing")
        assert api.status(job)["message"] == "not accepted yet: PersistentVolumeClaim data does not exist"
        affinity = {"required": {"nodeSelectorTerms": [zone]}}
        api.set("/api/v1/persistentvolumes", {"metadata": {"name": "pv-1"}, "spec": {"nodeAffinity": affinity}})
        bound = {"metadata": {"name": "data"}, "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}}
        api.set(claims, bound)
        accepted = await reaches(api, job, "Running")
        assert accepted["request"]["nodeSelectorTerms"] == [zone]


async def test_a_gang_with_a_claim_for_one_pod_is_refused_before_it_holds_anything() -> None:
    api = FakeCluster()
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}], "volumes": volumes}}
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"}}
    async with rest_of_cluster(api, exit_code=never), operator(api):
        api.set("/api/v1/namespaces/default/persistentvolumeclaims", claim)
        refused = await reaches(api, api.submit(template=template, replicas=2), "Failed")
        assert refused["reason"] == "TemplateRefused"
        assert refused["message"].endswith("is ReadWriteOncePod: one pod mounts it, and the job has 2 ranks")
        await reaches(api, api.submit(template=template, name="alone", replicas=1), "Running")


async def test_a_rank_that_its_kubelet_never_creates_is_told_after_a_minute_by_itself() -> None:
    """Nothing changes in the cluster at that minute: the operator wakes by its own clock."""
    api = FakeCluster()
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        job = api.submit()
        await api.until(lambda: len(api.all("pods")) == 2)
        for pod in api.all("pods"):
            api.change(f"{PODS}/{pod['metadata']['name']}", lambda item: item["spec"].update(nodeName=pin_of(item)))
        api.change(f"{PODS}/job-1-0", start)
        api.change(f"{PODS}/job-1-1", lambda item: item["status"].update(containerStatuses=[waiting]))
        await asyncio.sleep(59)
        assert (api.status(job)["phase"], api.status(job)["reason"]) == ("Starting", "Starting")
        await asyncio.sleep(2)
        assert (api.status(job)["phase"], api.status(job)["reason"]) == ("Starting", "ContainerCreating")
        assert api.status(job)["message"].endswith("; see `kubectl describe pod job-1-1`")
        api.change(f"{PODS}/job-1-1", start)
        assert (await reaches(api, job, "Running"))["reason"] == "Running"
        assert events(api, job).count("ContainerCreating") == 1
