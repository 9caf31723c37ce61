"""What an ArrayQuota object says, and what its status shows."""

from __future__ import annotations

from typing import Any

import pytest

from coda.history.division import PastUse
from coda.model.world import ArrayQuota
from coda.nodes.array_use import QuotaUse, Share
from coda.policy import ArraysConfig
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.quotas.array_quotas import array_quota_from_json, array_quota_status, division_status

SINCE_S = 1_795_392_000.0  # 2026-11-23T00:00:00Z


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


def divided(source: str, cores: str, large: str, since: str = "2026-11-23T00:00:00.000Z") -> Json:
    """An object with Auto whose status has this division."""
    division = {"source": source, "jobs": 70, "coresPerGPU": cores, "largeShare": large, "since": since}
    item = aq_json("q", division="Auto", gpuArray={"coresPerGPU": 6, "largeGPUs": 8})
    return item | {"status": {"division": division}}


@pytest.mark.parametrize("source", ["History", "TooFewJobs"])
def test_the_last_step_counts_for_auto_and_the_spec_is_where_it_begins(source: str) -> None:
    found = array_quota_from_json(divided(source, "4.5", "35%"))
    assert (found.reserve_cores_per_gpu, found.large_gpus, found.large_share) == (4.5, None, 0.35)
    begins = array_quota_from_json(divided("Static", "4.5", "35%"))
    assert (begins.reserve_cores_per_gpu, begins.large_gpus, begins.large_share) == (6.0, 8, None)
    again_static = divided(source, "4.5", "35%")
    again_static["spec"]["division"] = "Static"
    assert array_quota_from_json(again_static).reserve_cores_per_gpu == 6.0


def stepped(item: Json, past: PastUse, *, after_s: float) -> Json:
    told = item.get("status", {}).get("division", {})
    return division_status(array_quota_from_json(item), 16, ArraysConfig(), past, told, SINCE_S + after_s)


def test_auto_takes_a_step_an_hour() -> None:
    past = PastUse(jobs=90, tuned_jobs=60, cores_per_gpu=2.0, large_share=0.9)
    first = stepped(aq_json("q", division="Auto", gpuArray={"coresPerGPU": 6, "largeGPUs": 8}), past, after_s=0.0)
    assert first == divided("History", "5.5", "55%")["status"]["division"] | {"jobs": 90}
    item = divided("History", "5.5", "55%")
    assert stepped(item, past, after_s=3599.0) == first
    second = stepped(item, past, after_s=3600.0)
    assert (second["coresPerGPU"], second["largeShare"], second["since"]) == ("5", "60%", "2026-11-23T01:00:00.000Z")


def test_auto_stays_where_it_is_without_a_past_and_says_so() -> None:
    first = stepped(aq_json("q", division="Auto"), PastUse(jobs=3), after_s=0.0)
    assert (first["source"], first["jobs"], first["coresPerGPU"], first["largeShare"]) == ("TooFewJobs", 3, "4", "70%")
    later = stepped(divided("History", "5.5", "55%"), PastUse(), after_s=9999.0)
    assert (later["source"], later["coresPerGPU"], later["since"]) == ("TooFewJobs", "5.5", "2026-11-23T00:00:00.000Z")


def test_a_static_division_follows_nobody() -> None:
    past = PastUse(jobs=90, cores_per_gpu=2.0, large_share=0.9)
    found = stepped(aq_json("q", gpuArray={"largeGPUs": 4}), past, after_s=0.0)
    assert found == {"source": "Static", "jobs": 0, "coresPerGPU": "4", "largeShare": "25%"}


def status(use: QuotaUse, *, has_arrays: bool = True) -> Json:
    return array_quota_status(aq_json("q"), use, {}, policy="coda" if has_arrays else "arrival", has_arrays=has_arrays)


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
