"""Cores count as the kernel has them: autoscalers, hands and `systemctl daemon-reload` change them behind a status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.allocator import TuningPhase
from coda.allocator.window_samples import OTHER_CORES
from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.cluster_rig import EmulatedCluster
from coda_lab.emulators.load import Curved
from coda_lab.emulators.node import MAIN
from coda_lab.emulators.nvml import Process
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig
from tests.agent.loop.test_rank_reports import rank, reported
from tests.core.allocator.curves import linear_then_drop

WINDOW_S = 30
NEEDS, START = 8, 4


def one(rig: Rig) -> EmulatedCluster:
    cluster = EmulatedCluster(rig)
    cluster.submit("train", start=START, trainer=Curved(curve=linear_then_drop(NEEDS, 0.9)))
    return cluster


def set_cores(cluster: EmulatedCluster, cores: int) -> None:
    """Change what the kernel allows, behind the back of status and operator."""
    cluster.rig.node.kubelet.resize(cluster.jobs["train"].work.uid, MAIN, cores)


@pytest.mark.parametrize("version", [1, 2])
async def test_windows_at_other_cores_than_the_status_says_do_not_count_and_are_said(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    cluster = one(make_rig(version=version, window_s=WINDOW_S))
    await cluster.run(5)
    set_cores(cluster, NEEDS)
    await cluster.run(4 * WINDOW_S)
    tuning = cluster.tuning("train")
    assert (tuning.phase, tuning.reason) == (TuningPhase.MEASURING, OTHER_CORES)
    assert tuning.found is not None
    assert not tuning.found.curve
    assert caplog.text.count("default/train-1-0 may use 8 cores here, and its job says 4") == 1
    set_cores(cluster, START)
    await cluster.until_done()
    assert cluster.rig.node.limit_of(cluster.jobs["train"].work) == pytest.approx(NEEDS, abs=1)


async def test_other_cores_for_a_moment_spoil_the_window_they_are_in(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.run(20)
    set_cores(cluster, NEEDS)
    await cluster.run(3)
    set_cores(cluster, START)
    await cluster.run(WINDOW_S)
    assert cluster.tuning("train").reason == OTHER_CORES
    await cluster.until_done()
    assert cluster.rig.node.limit_of(cluster.jobs["train"].work) == pytest.approx(NEEDS, abs=1)


async def test_a_tuned_job_with_other_cores_is_not_watched_by_them(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    """They would look like another phase of the job."""
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.until_done()
    found = cluster.tuning("train").found
    set_cores(cluster, START // 2)
    await cluster.run(10 * WINDOW_S)
    assert cluster.tuning("train").phase is TuningPhase.TUNED
    assert cluster.tuning("train").found == found
    assert caplog.text.count("may use 2 cores here") == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sidecar", [{}, {"sidecar": 1.0}, {"sidecar": None}], ids=["none", "limited", "unlimited"])
async def test_a_rank_is_throttled_as_its_main_container_is(
    make_rig: MakeRig, version: int, sidecar: dict[str, float | None]
) -> None:
    """A pod has no limit where one container has none: its own periods then say that nobody is throttled."""
    rig = make_rig(version=version)
    work = rank(rig, 1)
    rig.node.kubelet.stop(work.uid)
    work.quality = Quality.BURSTABLE
    rig.node.kubelet.start(work.uid, work.quality, {MAIN: 4.0, **sidecar})
    rig.node.demand(work)
    await rig.run(3)
    rig.node.advance()
    seen = rig.agent.sensor.sense(rig.api.pods(), rig.node.now).cpu_by_pod[work.uid]
    assert seen.cores == pytest.approx(4)
    assert seen.throttled_share == 1.0
    work.demand_cores = 3
    rig.node.demand(work)
    await rig.run(3)
    rig.node.advance()
    seen = rig.agent.sensor.sense(rig.api.pods(), rig.node.now).cpu_by_pod[work.uid]
    assert seen.cores == pytest.approx(3)
    assert seen.throttled_share == 0.0


@pytest.mark.parametrize(("cores", "is_measured"), [(0.4, False), (None, False), (2000, False), (1, True)])
async def test_a_rank_with_less_than_a_core_or_with_unknown_cores_has_no_windows(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture, cores: float | None, is_measured: bool
) -> None:
    rig = make_rig(window_s=WINDOW_S)
    work = rank(rig, 1)
    await rig.run(10 + WINDOW_S + 5)
    assert len(reported(rig)) == 1
    if cores is None:
        work.quality = Quality.BURSTABLE
        rig.node.kubelet.pods[work.uid].containers[MAIN].cores = None
    else:
        rig.node.kubelet.resize(work.uid, MAIN, cores)
    await rig.run(10 + 2 * WINDOW_S + 10)
    assert [report["coresPerReplica"] for report in reported(rig)] == ([1] if is_measured else [])
    assert "is not measured for its job" not in caplog.text


@pytest.mark.parametrize("version", [1, 2])
async def test_what_a_sidecar_uses_does_not_count_as_use_of_the_ranks_cores(make_rig: MakeRig, version: int) -> None:
    """Its cores are the main container's: with the pod's use it would seem to use all of them."""
    rig = make_rig(version=version, window_s=WINDOW_S)
    work = rank(rig, 1)
    rig.node.kubelet.stop(work.uid)
    work.quality, work.demand_cores = Quality.BURSTABLE, 2.0
    rig.node.kubelet.start(work.uid, work.quality, {MAIN: 4.0, "sidecar": None})
    process = Process(pid=rig.node.kubelet.pods[work.uid].containers[MAIN].process)
    with rig.node.state.batch():
        for device in work.devices:
            rig.node.state.set_processes(device, [process])
    rig.node.demand(work)
    rig.node.kubelet.demand(work.uid, "sidecar", 2.0)
    await rig.run(10 + WINDOW_S + 5)
    rig.node.advance()
    senses = rig.agent.sensor.sense(rig.api.pods(), rig.node.now)
    assert senses.cpu_by_pod[work.uid].cores == pytest.approx(4)
    assert senses.cpu_by_rank[work.uid].cores == pytest.approx(2)
    (report,) = reported(rig)
    assert report["cpuCores"] == pytest.approx(2)
    assert report["heldUp"] is False


async def test_the_use_of_the_pod_is_the_ranks_where_its_main_container_is_not_found(make_rig: MakeRig) -> None:
    rig = make_rig()
    work = rank(rig, 1)
    await rig.run(3)
    pods = [replace(pod, container="") for pod in rig.api.pods()]
    rig.node.advance()
    assert rig.agent.sensor.sense(pods, rig.node.now).cpu_by_rank[work.uid].cores == pytest.approx(4, abs=0.1)
