"""A job lacks GPU memory where others have some of it: that is no proof against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda.diagnosis import RankLog, Reason, Retry, classify
from coda.diagnosis.classifier import beside_others
from coda.lifecycle import PodState
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.reconcile.failures.guests import ENDED_WITHIN_S, had_others
from tests.core.gangs import pod
from tests.extender.objects import placement
from tests.operator_tests.fake_cluster import JOBS, PODS, FakeCluster, clock
from tests.operator_tests.view.test_cluster import feed, rank_json, settle, watched

ON_SEATS, ELSEWHERE, WHOLE = {"gpus": [2]}, {"gpus": [3]}, dict[str, Any]()
OTHERS = {
    "a guest on its node": (WHOLE, "n1", ON_SEATS, 1, True),
    "a guest on another node": (WHOLE, "n7", ON_SEATS, 1, False),
    "beside a job with GPUs of its own, another one": (WHOLE, "n1", WHOLE, 1, False),
    "beside a guest, another one on the same GPU": (ON_SEATS, "n1", ON_SEATS, 1, True),
    "beside a guest, another one on another GPU": (ON_SEATS, "n1", ELSEWHERE, 1, False),
    "beside a guest, another one on another node": (ON_SEATS, "n7", ON_SEATS, 1, False),
    "beside a guest, a job with GPUs of its own": (ON_SEATS, "n1", WHOLE, 1, True),
    "beside a guest, a job with GPUs of its own on another node": (ON_SEATS, "n7", WHOLE, 1, False),
    "beside a guest, a job without GPUs": (ON_SEATS, "n1", WHOLE, 0, False),
}


@pytest.mark.parametrize(
    ("seats", "node", "others_seats", "others_gpus", "expected"), OTHERS.values(), ids=list(OTHERS)
)
async def test_who_may_have_had_memory_of_a_jobs_gpus(
    seats: dict[str, Any], node: str, others_seats: dict[str, Any], others_gpus: int, expected: bool
) -> None:
    """A guest never counted as one whose memory others had. But Coda limits it for them: it failed for good by that."""
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        jobs = (("failed", "n1", seats, 1), ("other", node, others_seats, others_gpus))
        for name, where, more, gpus in jobs:
            path = api.submit(name, replicas=1, gpusPerReplica=gpus)
            api.set(JOBS, api.item(path) | {"status": {"placement": placement(where) | more}})
            job = feed(cluster, api, path)
            api.set(PODS, rank_json(job, 0, node=where))
        await settle()
        failed = cluster.job("default/failed")
        assert failed is not None
        assert had_others(cluster, failed, ()) is expected


@pytest.mark.parametrize("seats", [WHOLE, ON_SEATS])
@pytest.mark.parametrize("shares", ["Opportunistic", "Guaranteed"])
@pytest.mark.parametrize(("ended_before_s", "expected"), [(-5, True), (ENDED_WITHIN_S - 1, True), (900, False)])
async def test_who_ended_a_moment_ago_counts(
    seats: dict[str, Any], shares: str, ended_before_s: float, expected: bool
) -> None:
    """For a guest anybody, for others guests.

    Of a finished job the cluster view keeps no placement, and logs are read for up to 50 s."""
    api = FakeCluster()
    failed_s = clock()
    async with watched(api) as (cluster, _):
        for name in ("owner", "other"):
            path = api.submit(name, replicas=1, gpusPerReplica=1)
            status: dict[str, Any] = {"placement": placement("n1") | seats}
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
        assert had_others(cluster, owner, (failed,)) is (expected and (seats == ON_SEATS or shares == "Opportunistic"))


@pytest.mark.parametrize(
    ("on_seats", "who"), [(False, "opportunistic jobs on its node"), (True, "others on its GPU may have needed")]
)
def test_a_lack_of_gpu_memory_beside_others_is_tried_again(on_seats: bool, who: str) -> None:
    found = classify([RankLog(log=b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.25 GiB\n")])
    assert (found.reason, found.retry) == (Reason.GPU_MEMORY, Retry.NO)
    beside = beside_others(found, on_seats=on_seats)
    assert (beside.retry, beside.evidence) == (Retry.YES, found.evidence)
    assert who in beside.advice
    assert found.advice in beside.advice


def test_no_other_failure_is_the_others() -> None:
    found = classify([RankLog(log=b"ModuleNotFoundError: No module named 'apex'\n")])
    assert beside_others(found, on_seats=True) is found
    gone = replace(found, reason=Reason.GPU_MEMORY, retry=Retry.YES)
    assert beside_others(gone, on_seats=False) is gone
