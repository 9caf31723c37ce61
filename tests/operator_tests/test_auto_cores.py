"""Cores that Coda chooses, and a kubelet or a LimitRange that refuses them."""

from __future__ import annotations

from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import pin_of, rest_of_cluster
from tests.operator_tests.test_accidents import never
from tests.operator_tests.test_lost_ranks import reaches

MAIN_ONLY = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}


def cores_of(pod: Json, container: int = 0) -> int:
    return int(pod["spec"]["containers"][container]["resources"]["limits"]["cpu"])


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
