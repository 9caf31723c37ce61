"""Pods that the API server refuses: who has to change, and what becomes of the job."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from coda.errors import CodaError
from coda_kube.api.client import Rejected, error_from_answer
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster

OPERATOR = 'User "system:serviceaccount:coda-system:coda-operator"'


@pytest.mark.parametrize(
    ("status", "message", "phase", "reason"),
    [
        pytest.param(422, "Pod is invalid: spec.foo", "Failed", "TemplateRefused", id="the template is wrong"),
        pytest.param(
            403, "pods is forbidden: violates PodSecurity", "Failed", "TemplateRefused", id="a policy forbids it"
        ),
        pytest.param(403, "exceeded quota: tight, requested: pods=1", None, "QuotaExceeded", id="a quota"),
        pytest.param(403, "status unknown for quota: new", None, "QuotaNotCounted", id="a quota nobody has counted"),
        pytest.param(
            403,
            'error looking up service account default/default: serviceaccount "default" not found',
            None,
            "ServiceAccountMissing",
            id="a namespace so new that it has no service account",
        ),
        pytest.param(
            403,
            'pods "x" is forbidden: no PriorityClass with name high was found',
            None,
            "PriorityClassMissing",
            id="a priority class that is applied a moment later",
        ),
        pytest.param(
            403,
            'pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
            None,
            "RuntimeClassMissing",
            id="a runtime class that the GPU operator makes",
        ),
        pytest.param(
            403,
            "pods is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
            "Failed",
            "TemplateRefused",
            id="a template that contradicts its runtime class",
        ),
        pytest.param(
            403,
            "insufficient quota to match these scopes: [{PriorityClass In [high]}]",
            None,
            "QuotaMissing",
            id="a class that asks for a quota",
        ),
        pytest.param(
            500,
            "insufficient quota to match these scopes: [{PriorityClass In [high]}]",
            None,
            "QuotaMissing",
            id="the same, as API servers say it",
        ),
        pytest.param(
            500,
            "insufficient quota to consume: requests.nvidia.com/gpu",
            None,
            "QuotaMissing",
            id="a resource that asks for a quota",
        ),
        pytest.param(500, "failed calling webhook: i/o timeout", None, None, id="a webhook that does not answer"),
        pytest.param(
            400,
            'admission webhook "x" denied the request: failed to verify image: i/o timeout',
            None,
            "NotAdmitted",
            id="a webhook that denies while its registry is away",
        ),
        pytest.param(
            422,
            "ValidatingAdmissionPolicy 'x' denied request: failed to configure binding: no params found",
            None,
            "NotAdmitted",
            id="a policy whose parameters are applied a moment later",
        ),
        pytest.param(
            422,
            "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no GPUs here",
            "Failed",
            "TemplateRefused",
            id="a policy that judges",
        ),
        pytest.param(401, "Unauthorized", None, None, id="the API server has just started"),
        pytest.param(403, "not yet ready to handle request", None, None, id="so has an admission plugin"),
        pytest.param(403, 'User "x" cannot create resource "pods"', None, None, id="so has the authorizer"),
        pytest.param(
            403,
            "unable to create new content in namespace x because it is being terminated",
            None,
            None,
            id="the namespace goes",
        ),
        pytest.param(404, 'namespaces "x" not found', None, None, id="the namespace is gone"),
        pytest.param(
            403,
            f'resourcequotas is forbidden: {OPERATOR} cannot list resource "resourcequotas" in API group "" in the '
            'namespace "default"',
            None,
            None,
            id="it may not list quotas yet",
        ),
        pytest.param(
            403,
            'admission webhook denied: nobody cannot use resource "gold"',
            "Failed",
            "TemplateRefused",
            id="a webhook says nearly the same of something else",
        ),
    ],
)
async def test_a_refused_dry_run(status: int, message: str, phase: str | None, reason: str | None) -> None:
    """What no template can mend never fails a job: once the refusal ends, the job starts."""
    said = {"kind": "Status", "message": message}
    gone = {"reason": "NotFound", "details": {"name": "x", "kind": "namespaces"}} if status == 404 else {}
    await refused(error_from_answer(status, orjson.dumps(said | gone).decode()), phase, reason)


@pytest.mark.parametrize(("status", "reason"), [(400, None), (403, None), (413, "NotAdmitted"), (422, None)])
async def test_what_a_proxy_says_before_an_api_server_has_judged_fails_no_job(status: int, reason: str | None) -> None:
    """A template that is too large for a proxy stays so until one of the two is changed: its user is told."""
    text = "<html><h1>Forbidden, Bad request, Request Entity Too Large</h1>nginx</html>"
    await refused(error_from_answer(status, text, "Forbidden"), None, reason)


async def refused(error: CodaError, phase: str | None, reason: str | None) -> None:
    api = FakeCluster()
    refusal = [error]

    def admit(_pod: object) -> None:
        if refusal:
            raise refusal[0]

    api.admit = admit
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        job = api.submit()
        await asyncio.sleep(5)
        told = api.status(job)
        assert (told.get("phase"), told.get("reason")) == (phase, reason)
        rest.plans = True
        refusal.clear()
        api.edit(job, **({"priority": 1} if phase == "Failed" else {}))
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=60)


NO_ACCOUNT = 'error looking up service account default/x: serviceaccount "x" not found'


async def test_a_request_that_was_not_admitted_is_never_planned() -> None:
    """The user picks a service account that does not exist, so nothing has judged or capped what the pod asks for."""
    api = FakeCluster()
    refusal = [Rejected(403, "Forbidden", NO_ACCOUNT)]

    def admit(_pod: object) -> None:
        if refusal:
            raise refusal[0]

    api.admit = admit
    container = {"name": "main", "image": "x", "resources": {"requests": {"memory": "1e999"}}}
    async with rest_of_cluster(api), operator(api):
        job = api.submit(template={"spec": {"containers": [container], "serviceAccountName": "x"}})
        await api.until(lambda: api.status(job).get("reason") == "ServiceAccountMissing")
        assert "request" not in api.status(job)
        assert 'serviceaccount "x" not found' in api.status(job)["message"]
        told = len(api.history("trainingjobs"))
        await asyncio.sleep(300)
        assert len(api.history("trainingjobs")) == told, "the same answer is written once"
        refusal.clear()
        await api.until(lambda: "request" in api.status(job), timeout_s=31)


async def test_an_edit_that_is_not_admitted_leaves_the_accepted_request() -> None:
    api = FakeCluster()
    refusal: list[Rejected] = []

    def admit(_pod: object) -> None:
        if refusal:
            raise refusal[0]

    api.admit = admit
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        job = api.submit()
        await api.until(lambda: "request" in api.status(job))
        before = api.status(job)
        refusal.append(Rejected(403, "Forbidden", NO_ACCOUNT))
        api.edit(job, replicas=3)
        await api.until(lambda: api.status(job).get("reason") == "ServiceAccountMissing")
        told = api.status(job)
        assert (told["phase"], told["request"]) == ("Queued", before["request"])
        assert told["observedGeneration"] == before["observedGeneration"], "so the planner knows it is not accepted"
        refusal.clear()
        rest.plans = True
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=60)


async def test_an_opportunistic_job_needs_no_gpu_in_a_quota_and_an_edit_of_its_class_does() -> None:
    api = FakeCluster()

    def admit(pod: dict[str, Any]) -> None:
        if "nvidia.com/gpu" in pod["spec"]["containers"][0]["resources"]["requests"]:
            raise Rejected(403, "Forbidden", "exceeded quota: no-gpus, requested: requests.nvidia.com/gpu=1")

    api.admit = admit
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        job = api.submit(serviceClass="Opportunistic", gpusPerReplica=1)
        await api.until(lambda: api.status(job).get("phase") == "Queued")
        request = api.status(job)["request"]
        assert (request["resources"]["nvidia.com/gpu"], request["quota"].get("requests.nvidia.com/gpu")) == ("1", None)
        accepted = api.status(job)["observedGeneration"]
        api.edit(job, serviceClass="Guaranteed")
        await api.until(lambda: api.status(job).get("reason") == "QuotaExceeded")
        assert api.status(job)["observedGeneration"] == accepted, "the planner knows that the edit is not accepted"
        api.edit(job, serviceClass="Opportunistic")
        await api.until(lambda: api.status(job)["observedGeneration"] > accepted, timeout_s=60)
        auto = api.submit("auto", serviceClass="Auto", gpusPerReplica=1)
        await api.until(lambda: api.status(auto).get("reason") == "QuotaExceeded")


async def test_a_job_beyond_a_quota_is_accepted_soon_after_a_pod_of_its_namespace_ends() -> None:
    api = FakeCluster()
    full = [True]

    def admit(pod: dict[str, dict[str, str]]) -> None:
        if full[0] and pod["metadata"].get("generateName", "").startswith("second"):
            raise Rejected(403, "Forbidden", "exceeded quota: tight, requested: pods=1, used: pods=2")

    api.admit = admit
    async with rest_of_cluster(api) as rest, operator(api):
        rest.run_s = lambda _attempt, _rank: 200.0
        first = api.submit("first")
        await api.until(lambda: api.status(first).get("phase") == "Running", timeout_s=60)
        second = api.submit("second")
        await api.until(lambda: api.status(second).get("reason") == "QuotaExceeded")
        await api.until(lambda: api.status(first).get("phase") == "Succeeded", timeout_s=300)
        full[0] = False
        await api.until(lambda: "request" in api.status(second), timeout_s=2)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param("exceeded quota: tight, requested: pods=1, used: pods=2", "QuotaExceeded", id="quota"),
        pytest.param("admission webhook refuses rank 3", "PodRefused", id="policy"),
    ],
)
async def test_a_gang_of_which_one_pod_is_refused_is_rolled_back_whole(message: str, reason: str) -> None:
    api = FakeCluster()
    refusing = [True]

    def admit(pod: dict[str, dict[str, str]]) -> None:
        if refusing[0] and pod["metadata"].get("name", "").endswith("-3"):
            raise Rejected(403, "Forbidden", message)

    api.admit = admit
    async with rest_of_cluster(api), operator(api) as process:
        job = api.submit(replicas=4)
        await api.until(lambda: api.status(job).get("reason") == reason)
        assert message in api.status(job)["message"]
        await api.until(lambda: api.pods() == {})
        refusing[0] = False
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=60)
        assert api.status(job)["failures"] == 0
        assert process.count("coda_operator_attempts_ended_total", reason=reason) >= 1


async def test_a_refusal_of_the_moment_costs_no_attempt_either() -> None:
    api = FakeCluster()
    errors = [Rejected(403, "Forbidden", "not yet ready to handle request")] * 3

    def refuse(call: Call) -> None:
        if call.verb == "create" and call.path == PODS and errors:
            raise errors.pop()

    api.before = refuse
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=4)
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=60)
        assert api.status(job)["attempt"] == 1
