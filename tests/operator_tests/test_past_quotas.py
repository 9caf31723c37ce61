"""What quotas of GPUs do not count: cores (`CODA_MOST_CORES_PER_GPU`), and GPUs that a claim brings."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from coda_operator.cores_limit import CoresLimit
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.reconcile.test_resize import never_ends, resizes_of, until_ended, until_phase
from tests.operator_tests.resizing_nodes import cores_of, grant, resizing_nodes
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches
from tests.operator_tests.test_trials import TRIAL, TRIAL_NEVER_ENDS

EIGHT = CoresLimit(per_gpu=8)
THREE = CoresLimit(per_gpu=3)


def with_sidecar(cores: str) -> Json:
    side = {"name": "side", "image": "side:1", "resources": {"requests": {"cpu": cores}}}
    return {"spec": {"containers": [{"name": "main", "image": "train:1"}, side]}}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"gpusPerReplica": 1, "cpusPerReplica": 48}, id="its own cores"),
        pytest.param({"gpusPerReplica": 2, "cpusPerReplica": 17}, id="one too many"),
        pytest.param({"gpusPerReplica": 1, "cpusPerReplica": 8, "template": with_sidecar("100m")}, id="a sidecar's"),
        pytest.param({"gpusPerReplica": 1, "cpusPerReplica": "auto", "template": with_sidecar("40")}, id="auto"),
    ],
)
async def test_a_job_that_asks_for_more_cores_per_gpu_is_refused_with_what_to_do(spec: Any) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api, cores_limit=EIGHT):
        job = api.submit(**spec)
        await until_phase(api, job, "Failed")
        status = api.status(job)
    assert status["reason"] == "TemplateRefused"
    most = 8 * spec["gpusPerReplica"]
    assert status["message"].startswith("each rank asks for ")
    assert status["message"].endswith(
        f", and this platform allows 8 cores per GPU: ask for at most {most} cores per rank, sidecars included "
        "(spec.cpusPerReplica), or for more GPUs"
    )
    assert not api.pods()


async def test_a_template_that_claims_devices_is_refused_with_what_to_do() -> None:
    """GPUs of a claim would count for no quota and no plan."""
    api = FakeCluster()
    template = with_sidecar("1")
    template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "eight-gpus"}]
    async with rest_of_cluster(api), operator(api):
        job = api.submit(template=template)
        await until_phase(api, job, "Failed")
        status = api.status(job)
    assert status["reason"] == "TemplateRefused"
    assert "leave spec.template.spec.resourceClaims out, and ask for GPUs by spec.gpusPerReplica" in status["message"]
    assert not api.pods()


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        pytest.param({"gpusPerReplica": 8, "cpusPerReplica": 64}, EIGHT, id="as many as it may"),
        pytest.param({"gpusPerReplica": 0, "cpusPerReplica": 64}, EIGHT, id="no GPU: its cores are charged"),
        pytest.param({"gpusPerReplica": 1, "cpusPerReplica": 1024}, CoresLimit(), id="no limit"),
    ],
)
async def test_other_jobs_run(spec: Any, limit: CoresLimit) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api, cores_limit=limit):
        await until_phase(api, api.submit(**spec), "Succeeded")


BESIDE_SUSPENSION: Any = [
    pytest.param({"suspend": True}, {"suspend": False}, id="suspended and resumed"),
    pytest.param({}, {}, id="restarted"),
]


async def stop(api: FakeCluster, job: str, edit: Any) -> None:
    """End the attempt: by an edit that suspends the job, or else by the loss of a pod."""
    if edit:
        api.edit(job, **edit)
        await reaches(api, job, "Suspended")
    else:
        api.end(f"{PODS}/job-1-0")


@pytest.mark.parametrize(("before", "after"), BESIDE_SUSPENSION)
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"cpusPerReplica": 32}, id="its own cores"),
        pytest.param({"cpusPerReplica": 24, "template": with_sidecar("8")}, id="a sidecar's"),
        pytest.param({"cpusPerReplica": "auto", "template": with_sidecar("40")}, id="auto"),
    ],
)
async def test_what_was_accepted_before_the_limit_comes_back(spec: Any, before: Any, after: Any) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never_ends):
        async with operator(api):
            job = api.submit(replicas=1, gpusPerReplica=8, **spec)
            await reaches(api, job, "Running")
        async with operator(api, cores_limit=THREE):
            await stop(api, job, before)
            api.edit(job, **after)
            await reaches(api, job, "Running", attempt=2)


async def test_the_gang_of_a_trial_that_was_accepted_before_the_limit_runs() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=TRIAL_NEVER_ENDS):
        async with operator(api):
            job = api.submit(gpusPerReplica=8, cpusPerReplica=33, trial=TRIAL, template=with_sidecar("1"))
            await reaches(api, job, "Running")
        async with operator(api, cores_limit=THREE):
            api.change(job, lambda item: item["status"].update(progress={"attempt": 1, "step": 1}))
            await reaches(api, job, "Succeeded", attempt=2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"template": with_sidecar("9")}, id="a larger sidecar"),
        pytest.param({"suspend": True}, {"suspend": False, "cpusPerReplica": 33}, id="more cores"),
        pytest.param({"suspend": True}, {"suspend": False, "gpusPerReplica": 4}, id="fewer GPUs"),
    ],
)
async def test_an_edit_brings_no_more_than_was_accepted_before_the_limit(before: Any, after: Any) -> None:
    """A template may be edited at any time, and the size of a suspended job."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never_ends):
        async with operator(api):
            job = api.submit(replicas=1, gpusPerReplica=8, cpusPerReplica=32, template=with_sidecar("8"))
            await reaches(api, job, "Running")
        async with operator(api, cores_limit=THREE):
            if not before:
                api.edit(job, **after)
            await stop(api, job, before)
            if before:
                api.edit(job, **after)
            status = await reaches(api, job, "Suspended" if before else "Restarting", reason="PodRefused")
            assert "not accepted again yet: each rank asks for " in status["message"]


async def test_a_running_job_gets_no_claims_by_an_edit() -> None:
    api = FakeCluster()
    template = with_sidecar("1")
    template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "eight-gpus"}]
    async with rest_of_cluster(api, exit_code=never_ends), operator(api):
        job = api.submit(replicas=1)
        await reaches(api, job, "Running")
        api.edit(job, template=template)
        api.end(f"{PODS}/job-1-0")
        status = await reaches(api, job, "Restarting", reason="PodRefused")
        assert "leave spec.template.spec.resourceClaims out" in status["message"]
        api.edit(job, template=with_sidecar("1"))
        await reaches(api, job, "Running", attempt=2)


@pytest.mark.parametrize(
    ("limit", "spec", "cores"),
    [
        pytest.param(2.5, {}, 2, id="a fraction"),
        pytest.param(8, {"template": with_sidecar("6500m")}, 1, id="what its sidecar leaves"),
    ],
)
async def test_auto_begins_within_the_limit(limit: float, spec: Any, cores: int) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never_ends), operator(api, cores_limit=CoresLimit(per_gpu=limit)):
        job = api.submit(gpusPerReplica=1, cpusPerReplica="auto", **spec)
        await until_phase(api, job, "Running")
        assert api.status(job)["request"]["cpusPerReplica"] == cores


async def test_cores_that_must_be_even_stay_within_the_limit() -> None:
    """A kubelet with `full-pcpus-only` refused the odd number that its sidecar left."""
    api = FakeCluster()
    limited = operator(api, cores_limit=CoresLimit(per_gpu=12))
    async with rest_of_cluster(api, exit_code=never_ends), limited:
        job = api.submit(replicas=1, gpusPerReplica=1, cpusPerReplica="auto", template=with_sidecar("11"))
        await reaches(api, job, "Running")
        assert api.status(job)["request"]["cpusPerReplica"] == 1
        said = "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2"
        refused = {"phase": "Failed", "reason": "SMTAlignmentError", "message": said}
        api.change(f"{PODS}/job-1-0", lambda pod: pod["status"].update(refused))
        status = await reaches(api, job, "Restarting", reason="PodRefused")
        assert "each rank asks for 13 cores and 1 GPU" in status["message"]
        assert len(api.pods()) == 0


async def test_auto_does_not_grow_beyond_the_limit_and_says_so() -> None:
    api = FakeCluster()
    limited = operator(api, cores_limit=CoresLimit(per_gpu=1))
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), limited:
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        before = cores_of(api)
        grant(api, job, 9)
        resize = await until_ended(api, job)
        assert (resize["state"], resize["reason"]) == ("Refused", "CoresPerGPU")
        assert "this platform allows 1 cores per GPU" in resize["message"]
        assert (cores_of(api), resizes_of(api)) == (before, [])
        grant(api, job, 8, sequence=2)
        assert (await until_ended(api, job, 2))["state"] == "Done"
