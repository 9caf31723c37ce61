"""A new node whose labels promise GPUs is kept from CPU jobs until it offers them: else they own its cores."""

from __future__ import annotations

import pytest

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import WaitCode
from coda.policy import ArraysConfig, PolicyConfig
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.state.short_nodes import JOINS_S, SHORT_S
from tests.extender.objects import job_json, node_json

CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(reserve_cores_per_gpu=4.0))
START_S = 1_800_000_000.0


class Seen:
    """A cluster of one node that joins, its time, and six CPU jobs of 8 cores."""

    def __init__(self, labels: dict[str, str], *, age_s: float = 0.0) -> None:
        self.now_s = START_S
        self.state = ClusterState(lambda: self.now_s, now_s=lambda: self.now_s)
        self.cache = CycleCache()
        self.labels, self.created = labels, time_from_seconds(START_S - age_s)
        self.turned, self.shown = self.created, {"nodeInfo": {"bootID": "first"}}
        self.is_ready = True
        self.offer(0)
        for number in range(6):
            item = job_json(f"etl-{number}", gpus=0)
            item["metadata"] |= {"namespace": "team", "resourceVersion": "1"}
            item["status"]["request"]["resources"] = {"cpu": "8", "memory": "4Gi"}
            item["status"]["request"]["cpusPerReplica"] = 8
            self.state.on_job(None, item)

    def offer(self, gpus: int, **other: str) -> None:
        item = node_json("new", gpus=gpus, ready=self.is_ready)
        item["status"] |= self.shown
        item["status"]["conditions"][0]["lastTransitionTime"] = self.turned
        item["metadata"]["labels"] |= self.labels
        item["metadata"]["creationTimestamp"] = self.created
        item["status"]["allocatable"] |= other
        self.state.on_node(None, item)

    def decide(self) -> CycleResult:
        self.state.end_short_nodes()
        world = self.state.snapshot(self.state.short_nodes.missing_by_name)
        return run_cycle(CycleSnapshot(world=world, epoch=1, now_s=self.now_s), CODA, self.cache)


PROMISES = [
    {"nvidia.com/gpu.present": "true"},
    {"feature.node.kubernetes.io/pci-10de.present": "true"},
    {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
    {"karpenter.k8s.aws/instance-gpu-count": "8"},
    {"k8s.amazonaws.com/accelerator": "nvidia-l4"},
    {"kubernetes.azure.com/accelerator": "nvidia"},
]


@pytest.mark.parametrize("labels", PROMISES, ids=lambda labels: next(iter(labels)))
def test_cpu_jobs_of_a_new_gpu_node_borrow_as_if_its_gpus_had_come_with_it(labels: dict[str, str]) -> None:
    seen = Seen(labels)
    told = seen.decide().decision
    assert not told.starts
    assert {refusal.code for refusal in told.refusals} == {WaitCode.NO_USABLE_NODE}
    assert "1 node new or back, and labelled for GPUs that are still to come" in told.refusals[0].message
    seen.now_s += 240.0
    seen.offer(8)
    assert sorted(start.borrows for start in seen.decide().decision.starts) == [False, False, *[True] * 4]


def test_a_node_whose_plugin_of_another_maker_does_not_run_yet_offers_none() -> None:
    seen = Seen({"karpenter.k8s.aws/instance-gpu-count": "4"})
    seen.offer(0, **{"amd.com/gpu": "0", "coda.scheduler/gpu": "0", "vpc.amazonaws.com/efa": "1"})
    assert not seen.decide().decision.starts


def test_a_node_that_never_offers_gpus_is_used_once_it_is_no_longer_new() -> None:
    seen = Seen({"nvidia.com/gpu.present": "true"}, age_s=60.0)
    assert seen.state.short_nodes.next_over_in_s() == JOINS_S - 60.0
    seen.now_s += JOINS_S - 61.0
    assert not seen.decide().decision.starts
    seen.now_s += 1.0
    assert len(seen.decide().decision.starts) == 6
    assert seen.state.short_nodes.next_over_in_s() is None
    seen.offer(0)
    assert len(seen.decide().decision.starts) == 6


def test_a_new_node_whose_gpus_stay_away_takes_no_jobs_again_until_it_is_no_longer_new() -> None:
    """Its plugin offered GPUs, and went: a toolkit starts containerd again, or MIG is set up."""
    seen = Seen({"nvidia.com/gpu.present": "true"}, age_s=60.0)
    seen.offer(8)
    seen.now_s += 5.0
    seen.offer(0)
    seen.now_s += SHORT_S + 1.0
    assert not seen.decide().decision.starts
    assert seen.state.short_nodes.next_over_in_s() == JOINS_S - 60.0 - 5.0 - SHORT_S - 1.0
    seen.now_s += 120.0
    seen.offer(8)
    assert sorted(start.borrows for start in seen.decide().decision.starts) == [False, False, *[True] * 4]


@pytest.mark.parametrize("offers_again", [False, True])
def test_a_node_whose_gpus_went_before_it_was_no_longer_new_is_used_afterwards(offers_again: bool) -> None:
    seen = Seen({"nvidia.com/gpu.present": "true"}, age_s=JOINS_S - 60.0)
    seen.offer(8)
    seen.offer(0)
    seen.now_s += SHORT_S
    assert len(seen.decide().decision.starts) == 6
    if offers_again:
        seen.offer(0)
    assert seen.state.short_nodes.next_over_in_s() is None


MONTHS_S = 90 * 86_400.0


def rebooted(*, seen: Seen) -> Seen:
    """An old node of 8 GPUs is restarted, and is Ready again after a minute; its driver is installed after that."""
    seen.offer(8)
    seen.now_s += 1.0
    seen.is_ready = False
    seen.offer(8)
    seen.now_s += 60.0
    seen.is_ready = True
    seen.turned, seen.shown = time_from_seconds(seen.now_s), {"nodeInfo": {"bootID": "second"}}
    seen.offer(0)
    return seen


def test_cpu_jobs_do_not_own_the_cores_of_a_node_whose_driver_is_installed_after_a_reboot() -> None:
    seen = rebooted(seen=Seen({"nvidia.com/gpu.present": "true"}, age_s=MONTHS_S))
    seen.now_s += SHORT_S + 5.0
    told = seen.decide().decision
    assert not told.starts
    assert "1 node new or back, and labelled for GPUs that are still to come" in told.refusals[0].message
    assert seen.state.short_nodes.next_over_in_s() == JOINS_S - SHORT_S - 5.0
    seen.now_s += 120.0
    seen.offer(8)
    assert sorted(start.borrows for start in seen.decide().decision.starts) == [False, False, *[True] * 4]


@pytest.mark.parametrize("ready", [True, False], ids=["so fast that nobody saw it", "seen"])
def test_a_reboot_counts_from_its_return_whatever_the_clock_of_the_node_says(ready: bool) -> None:
    """A clock without a battery begins years ago, until the network tells the time."""
    seen = Seen({"nvidia.com/gpu.present": "true"}, age_s=MONTHS_S)
    seen.is_ready = ready
    seen.offer(8)
    seen.now_s += 30.0
    seen.is_ready = True
    seen.shown = {"nodeInfo": {"bootID": "second"}}
    if not ready:
        seen.turned = time_from_seconds(1_000_000_000.0)
    seen.offer(0)
    seen.now_s += SHORT_S
    assert not seen.decide().decision.starts
    assert seen.state.short_nodes.next_over_in_s() == JOINS_S - SHORT_S


def test_a_clock_that_runs_ahead_keeps_no_node_idle_for_longer() -> None:
    seen = rebooted(seen=Seen({"nvidia.com/gpu.present": "true"}, age_s=MONTHS_S))
    seen.turned = time_from_seconds(seen.now_s + 86_400.0)
    seen.offer(0)
    for _ in range(3):
        seen.now_s += 199.0
        seen.offer(0)
        assert not seen.decide().decision.starts
    seen.now_s += 3.0
    assert len(seen.decide().decision.starts) == 6


def test_a_process_that_begins_reads_from_the_node_when_it_came_back() -> None:
    seen = rebooted(seen=Seen({"nvidia.com/gpu.present": "true"}, age_s=MONTHS_S))
    seen.now_s += SHORT_S + 5.0
    after = Seen({"nvidia.com/gpu.present": "true"}, age_s=MONTHS_S)
    after.now_s, after.turned, after.shown = seen.now_s, seen.turned, seen.shown
    after.state.on_node({"metadata": {"name": "new"}}, None)
    after.offer(0)
    assert not after.decide().decision.starts
    assert after.state.short_nodes.next_over_in_s() == JOINS_S - SHORT_S - 5.0


@pytest.mark.parametrize(("boot", "starts"), [("first", 6), ("second", 0), ("", 0)], ids=["no", "yes", "unknown"])
def test_a_node_whose_readiness_flaps_is_back_only_if_it_may_have_been_rebooted(boot: str, starts: int) -> None:
    """A display card's node has the label, too, and never offers a GPU."""
    seen = Seen({"feature.node.kubernetes.io/pci-10de.present": "true"}, age_s=MONTHS_S)
    for is_ready in (False, True):
        seen.now_s += 15.0
        seen.is_ready, seen.turned, seen.shown = is_ready, time_from_seconds(seen.now_s), {"nodeInfo": {"bootID": boot}}
        seen.offer(0)
    assert len(seen.decide().decision.starts) == starts
    assert seen.state.short_nodes.next_over_in_s() == (None if starts else JOINS_S)


def test_a_reboot_counts_from_when_the_node_is_ready_not_from_its_first_word() -> None:
    """Its kubelet tells the boot id before the network is set up."""
    seen = Seen({"nvidia.com/gpu.present": "true"}, age_s=MONTHS_S)
    seen.shown = {"nodeInfo": {"bootID": "second"}}
    for is_ready in (False, True):
        seen.now_s += 90.0
        seen.is_ready, seen.turned = is_ready, time_from_seconds(seen.now_s)
        seen.offer(0)
    assert not seen.decide().decision.starts
    assert seen.state.short_nodes.next_over_in_s() == JOINS_S


@pytest.mark.parametrize(
    ("labels", "age_s", "other"),
    [
        pytest.param({}, 0.0, {}, id="no label promises any"),
        pytest.param({"nvidia.com/gpu.present": "false"}, 0.0, {}, id="it says that it has none"),
        pytest.param({"karpenter.k8s.aws/instance-gpu-count": "0"}, 0.0, {}, id="it counts none"),
        pytest.param({"nvidia.com/gpu.present": "true"}, JOINS_S, {}, id="not new"),
        pytest.param({"nvidia.com/gpu.present": "true"}, 0.0, {"nvidia.com/mig-1g.10gb": "7"}, id="slices of MIG"),
        pytest.param({"karpenter.k8s.aws/instance-gpu-count": "4"}, 0.0, {"amd.com/gpu": "4"}, id="GPUs of AMD"),
        pytest.param({"kubernetes.azure.com/accelerator": "amd"}, 0.0, {"amd.com/cpx_nps4": "8"}, id="parts of them"),
    ],
)
def test_every_other_node_is_used_at_once(labels: dict[str, str], age_s: float, other: dict[str, str]) -> None:
    seen = Seen(labels, age_s=age_s)
    seen.offer(0, **other)
    assert len(seen.decide().decision.starts) == 6
