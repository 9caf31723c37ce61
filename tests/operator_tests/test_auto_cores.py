"""Cores that Coda chooses, and a kubelet or a LimitRange that refuses them."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import pin_of, rest_of_cluster
from tests.operator_tests.test_accidents import never
from tests.operator_tests.test_lost_ranks import reaches


def cores_of(pod: Json) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"])


async def test_a_job_that_a_kubelet_refuses_for_its_odd_cores_asks_for_whole_processor_cores() -> None:
    """As kubelets with `full-pcpus-only` do."""
    api = FakeCluster()
    said = "Pod was rejected: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    async with rest_of_cluster(api, exit_code=never, moves_pods=False) as rest, operator(api):
        job = api.submit(replicas=1, gpusPerReplica=1, cpusPerReplica="auto", category="CV")
        await api.until(lambda: "job-1-0" in api.pods())
        assert api.status(job)["request"]["cpusPerReplica"] == 3
        refusal = {"phase": "Failed", "reason": "SMTAlignmentError", "message": said}
        api.change(f"{PODS}/job-1-0", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))
        api.change(f"{PODS}/job-1-0", lambda pod: pod.update(status=refusal))
        told = await reaches(api, job, "Restarting", reason="SMTAlignmentError")
        assert told["message"].endswith("from now on it asks for a multiple of 2 cores")
        rest.moves_pods = True
        runs = await reaches(api, job, "Running", attempt=2)
        assert (runs["coresMultipleOf"], runs["request"]["cpusPerReplica"]) == (2, 4)


async def test_an_old_node_that_a_job_does_not_accept_does_not_limit_its_cores() -> None:
    api = FakeCluster()
    for name, cores in (("new", "96"), ("old", "9")):
        capacity = {"cpu": cores, "nvidia.com/gpu": "8"}
        node = {"metadata": {"name": name, "labels": {"gpu": name}}, "status": {"allocatable": capacity}}
        api.set("/api/v1/nodes", node)
    template = {"spec": {"nodeSelector": {"gpu": "new"}, "containers": [{"name": "main", "image": "i"}]}}
    async with rest_of_cluster(api, exit_code=never, moves_pods=False) as rest, operator(api):
        rest.plans = False
        auto = {"replicas": 1, "gpusPerReplica": 1, "cpusPerReplica": "auto", "category": "CV"}
        job = api.submit("picky", **auto, template=template)
        assert (await reaches(api, job, "Queued"))["request"]["cpusPerReplica"] == 3
        job = api.submit("any", **auto)
        assert (await reaches(api, job, "Queued"))["request"]["cpusPerReplica"] == 1


async def test_a_trial_that_a_kubelet_refuses_for_its_odd_part_of_the_cores_is_tried_again() -> None:
    """12 cores of four GPUs are even, and the part of one of them is not. The gang has what its user asked for."""
    api = FakeCluster()
    said = "Pod was rejected: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    async with rest_of_cluster(api, exit_code=never, moves_pods=False) as rest, operator(api):
        job = api.submit(replicas=1, gpusPerReplica=4, cpusPerReplica=12, trial={"runSeconds": 300, "waitSeconds": 300})
        await api.until(lambda: "job-1-0" in api.pods())
        assert api.status(job)["request"]["cpusPerReplica"] == 3
        refusal = {"phase": "Failed", "reason": "SMTAlignmentError", "message": said}
        api.change(f"{PODS}/job-1-0", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))
        api.change(f"{PODS}/job-1-0", lambda pod: pod.update(status=refusal))
        await reaches(api, job, "Restarting", reason="SMTAlignmentError")
        rest.moves_pods = True
        tried = await reaches(api, job, "Running", attempt=2)
        assert (tried["trial"]["attempt"], tried["request"]["cpusPerReplica"]) == (2, 4)
        api.change(job, lambda item: item["status"].update(progress={"attempt": 2, "step": 1}))
        whole = await reaches(api, job, "Running", attempt=3)
        assert (whole["trial"]["outcome"], whole["request"]["cpusPerReplica"]) == ("Passed", 12)


@pytest.mark.parametrize(
    ("kind", "most", "besides", "chosen"),
    [
        pytest.param("Container", 6, 0, 6, id="of a container"),
        pytest.param("Pod", 6, 1, 5, id="of a pod, whose other containers have a core"),
    ],
)
async def test_cores_that_coda_chooses_stay_within_a_limit_range(
    kind: str, most: int, besides: int, chosen: int
) -> None:
    api = FakeCluster()

    def admit(pod: Json) -> None:
        asked = cores_of(pod) + besides
        if asked > most:
            said = f'pods "x" is forbidden: [maximum cpu usage per {kind} is {most}, but limit is {asked}]'
            raise Rejected(403, "Forbidden", said)

    api.admit = admit
    async with rest_of_cluster(api, exit_code=never) as rest, operator(api):
        rest.plans = False
        job = api.submit(replicas=1, cpusPerReplica="auto")
        assert (await reaches(api, job, "Queued"))["request"]["cpusPerReplica"] == chosen


@pytest.mark.parametrize(
    ("cpus", "said", "begins"),
    [
        pytest.param(
            "auto", "maximum cpu usage per Container is 500m, but limit is 32", "Coda chose 32 cores", id="none"
        ),
        pytest.param(
            "auto", "maximum cpu usage per Container is 2, but limit is 3", "Coda chose 32 cores", id="another"
        ),
        pytest.param(
            "auto", "minimum cpu usage per Container is 16, but limit is 32", "Coda chose 32 cores", id="least"
        ),
        pytest.param("auto", "maximum memory usage per Container is 1Gi, but limit is 2Gi", "pods ", id="memory"),
        pytest.param(8, "maximum cpu usage per Container is 4, but limit is 8", "pods ", id="its own number"),
    ],
)
async def test_a_refusal_of_cores_that_the_user_never_wrote_says_whose_they_are(
    cpus: int | str, said: str, begins: str
) -> None:
    api = FakeCluster()

    def admit(pod: Json) -> None:
        raise Rejected(403, "Forbidden", f'pods "x" is forbidden: {said}')

    api.admit = admit
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=1, cpusPerReplica=cpus)
        failed = await reaches(api, job, "Failed", reason="TemplateRefused")
        assert failed["message"].startswith(begins)
        assert said in failed["message"]
