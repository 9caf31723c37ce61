"""A job with GPUs of its own lacks GPU memory where opportunistic jobs are: that is no proof against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda.diagnosis import RankLog, Reason, Retry, classify
from coda.diagnosis.classifier import beside_guests
from coda.lifecycle import PodState
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.reconcile.failures.guests import ENDED_WITHIN_S, had_guests
from tests.core.gangs import pod
from tests.extender.objects import placement
from tests.operator_tests.fake_cluster import JOBS, PODS, FakeCluster, clock
from tests.operator_tests.view.test_cluster import feed, rank_json, settle, watched

ON_SEATS, WHOLE = {"gpus": [2]}, dict[str, Any]()
OTHERS = {
    "a guest on its node": ("n1", ON_SEATS, True),
    "a guest on another node": ("n7", ON_SEATS, False),
    "a job with GPUs of its own": ("n1", WHOLE, False),
}


@pytest.mark.parametrize(("node", "seats", "expected"), OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("of_its_own", [True, False])
async def test_guests_are_jobs_with_seats_and_a_pod_on_a_node_of_a_job_with_whole_gpus(
    node: str, seats: dict[str, Any], expected: bool, of_its_own: bool
) -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        for name, where, more in (("owner", "n1", WHOLE if of_its_own else ON_SEATS), ("other", node, seats)):
            path = api.submit(name, replicas=1, gpusPerReplica=1)
            api.set(JOBS, api.item(path) | {"status": {"placement": placement(where) | more}})
            job = feed(cluster, api, path)
            api.set(PODS, rank_json(job, 0, node=where))
        await settle()
        owner = cluster.job("default/owner")
        assert owner is not None
        assert had_guests(cluster, owner, ()) is (expected and of_its_own)


@pytest.mark.parametrize("shares", ["Opportunistic", "Guaranteed"])
@pytest.mark.parametrize(("ended_before_s", "expected"), [(-5, True), (ENDED_WITHIN_S - 1, True), (900, False)])
async def test_a_guest_that_ended_a_moment_ago_counts(shares: str, ended_before_s: float, expected: bool) -> None:
    """Of a finished job the cluster view keeps no placement, and logs are read for up to 50 s."""
    api = FakeCluster()
    failed_s = clock()
    async with watched(api) as (cluster, _):
        for name in ("owner", "other"):
            path = api.submit(name, replicas=1, gpusPerReplica=1)
            status: dict[str, Any] = {"placement": placement("n1")}
            if name == "other":
                ended = time_from_seconds(failed_s - ended_before_s)
                status |= {"phase": "Succeeded", "completionTime": ended, "sharing": {"class": shares}}
            api.set(JOBS, api.item(path) | {"status": status})
            job = feed(cluster, api, path)
            api.set(PODS, rank_json(job, 0, node="n1"))
        await settle()
        owner = cluster.job("default/owner")
        assert owner is not None
        failed = pod(0, state=PodState.FAILED, ended_s=failed_s)
        assert had_guests(cluster, owner, (failed,)) is (expected and shares == "Opportunistic")


def test_a_lack_of_gpu_memory_beside_guests_is_tried_again() -> None:
    found = classify([RankLog(log=b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.25 GiB\n")])
    assert (found.reason, found.retry) == (Reason.GPU_MEMORY, Retry.NO)
    beside = beside_guests(found)
    assert (beside.retry, beside.evidence) == (Retry.YES, found.evidence)
    assert "opportunistic jobs" in beside.advice
    assert found.advice in beside.advice


def test_no_other_failure_is_the_guests() -> None:
    found = classify([RankLog(log=b"ModuleNotFoundError: No module named 'apex'\n")])
    assert beside_guests(found) is found
    gone = replace(found, reason=Reason.GPU_MEMORY, retry=Retry.YES)
    assert beside_guests(gone) is gone
