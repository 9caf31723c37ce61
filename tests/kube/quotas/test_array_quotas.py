"""What an ArrayQuota object says, and what its status shows."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model.world import ArrayQuota
from coda.nodes.array_use import QuotaUse, Share
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.quotas.array_quotas import array_quota_from_json, array_quota_status


def aq_json(name: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Json:
    metadata = {"name": name, "creationTimestamp": created, "generation": 2, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"nodeSelector": {"gpu": "a100"}}, {"selector": {"gpu": "a100"}}, id="some nodes"),
        pytest.param({"gpuArray": {"coresPerGPU": 0}}, {"reserve_cores_per_gpu": 0.0}, id="no cores"),
        pytest.param({"gpuArray": {"largeGPUs": 64}}, {"large_gpus": 64}, id="GPUs"),
        pytest.param({"gpuArray": {"largeGPUs": "70%"}}, {"large_share": 0.7}, id="a share of the GPUs"),
    ],
)
def test_reads_the_division(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    quota = ArrayQuota(name="q", created="2026-01-01T00:00:00Z", **expected)
    assert array_quota_from_json(aq_json("q", **spec)) == quota


def test_the_world_has_the_quotas_as_they_are_now() -> None:
    state = ClusterState()
    first, second = aq_json("q"), aq_json("q", gpuArray={"largeGPUs": 8})
    state.on_array_quota(None, first)
    before = state.version
    state.on_array_quota(first, dict(first, status={"nodes": 3}))
    assert state.version == before  # its status decides nothing
    state.on_array_quota(first, second)
    assert state.version > before
    assert state.snapshot().array_quotas == (array_quota_from_json(second),)
    state.on_array_quota(second, None)
    assert state.snapshot().array_quotas == ()


def status(use: QuotaUse, *, has_arrays: bool = True) -> Json:
    return array_quota_status(aq_json("q"), use, policy="coda" if has_arrays else "arrival", has_arrays=has_arrays)


def condition(shown: Json, kind: str) -> tuple[str, str, str]:
    found = next(one for one in shown["conditions"] if one["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_shows_each_array() -> None:
    use = QuotaUse(
        nodes=2,
        large_gpus=Share(8, 4, 2, 1, 16),
        gpu_jobs_cpu_m=Share(24_000, 20_500, 2_000, 0),
        cpu_jobs_cpu_m=Share(24_000, 6_000, 0, 2_000, 3_000),
    )
    shown = status(use)
    assert (shown["observedGeneration"], shown["nodes"]) == (2, 2)
    large = {"reserved": 8, "used": 4, "lent": 2, "borrowed": 1, "waiting": 16}
    assert shown["gpuArray"]["largeGPUs"] == large
    assert shown["gpuArray"]["cpus"] == {"reserved": "24", "used": "20500m", "lent": "2", "borrowed": "0"}
    cpus = {"reserved": "24", "used": "6", "lent": "0", "borrowed": "2", "waiting": "3"}
    assert shown["cpuArray"]["cpus"] == cpus
    assert [one["status"] for one in shown["conditions"]] == ["True", "False", "False"]


def test_says_why_it_is_not_in_force() -> None:
    assert condition(status(QuotaUse(nodes=1), has_arrays=False), "Active") == (
        "False",
        "PolicyWithoutArrays",
        "the policy arrival has no arrays: all jobs share all nodes",
    )
    assert condition(status(QuotaUse()), "Active")[1] == "NoNodes"


def test_says_with_whom_it_shares_nodes() -> None:
    one = condition(status(QuotaUse(nodes=1, shared_nodes={"n1": "other"})), "Overlapping")
    assert one[2] == "one of its nodes is selected by another ArrayQuota too, such as n1 by other: the older counts"
    two = condition(status(QuotaUse(nodes=1, shared_nodes={"n2": "x", "n1": "other"})), "Overlapping")
    assert two[0] == "True"
    assert two[2].startswith("2 of its nodes are selected by another ArrayQuota too, such as n1 by other")


def test_says_what_is_over_after_it_shrank() -> None:
    shown = condition(status(QuotaUse(nodes=1, excess_cpu_m=1_500)), "Exceeded")
    message = "CPU jobs hold 1500m cores that belong to the GPU array now: they come back as these jobs end"
    assert shown == ("True", "HeldByJobs", message)
