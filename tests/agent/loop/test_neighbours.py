"""Jobs of one socket that are tuned at the same time, and contention while a job is tuned."""

from __future__ import annotations

from coda_lab.emulators.cluster_rig import EmulatedCluster
from coda_lab.emulators.load import Trainer
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig

NEEDS = (4, 6, 5, 7)
"""Cores that keep the GPUs of each job busy; each starts with 8."""

STAGGER_S = 37  # so that the jobs' windows overlap


async def tuned_together(rig: Rig, needs: tuple[int, ...], gb_per_s: float) -> dict[int, float]:
    """The seconds until each job had the cores that it needs, by its need. `gb_per_s`: of all jobs together."""
    cluster = EmulatedCluster(rig, most=16)
    for number, need in enumerate(needs):
        job = cluster.submit(f"job-{need}", start=8, trainer=Trainer(cores_needed=need, noise=0.01), seed=number)
        job.work.demand_cores, job.work.bytes_per_s = need, gb_per_s * 1e9 / len(needs)
        rig.node.demand(job.work)
        await cluster.run(STAGGER_S)
    await cluster.until_done(3600)
    assert {need: rig.node.limit_of(cluster.jobs[f"job-{need}"].work) for need in needs} == {n: n for n in needs}
    return {need: (cluster.jobs[f"job-{need}"].done_s or 0) - cluster.jobs[f"job-{need}"].began_s for need in needs}


async def test_jobs_of_a_socket_with_bandwidth_to_spare_are_tuned_as_fast_as_alone(make_rig: MakeRig) -> None:
    rig = make_rig()
    half = rig.node.machine.profile.peak_bytes_per_s / 1e9 / 2
    assert max((await tuned_together(rig, NEEDS, half)).values()) <= 640  # alone: 320 to 638 s


async def test_jobs_of_a_socket_near_its_peak_disturb_each_other_and_all_come_to_an_end(make_rig: MakeRig) -> None:
    rig = make_rig()
    full = rig.node.machine.profile.peak_bytes_per_s / 1e9
    lasted = await tuned_together(rig, NEEDS, full)
    assert 640 < max(lasted.values()) <= 4 * 640


async def test_a_window_with_contention_is_measured_again_and_the_job_says_so(make_rig: MakeRig) -> None:
    rig = make_rig()
    cluster = EmulatedCluster(rig, most=16)
    job = cluster.submit("train", start=8, trainer=Trainer(cores_needed=6, noise=0.01))
    job.work.demand_cores, job.work.bytes_per_s = 6, 20e9
    rig.node.demand(job.work)
    await cluster.run(60)
    hog = rig.node.start("hog", cores=24, gb_per_s=1.25 * rig.node.machine.profile.peak_bytes_per_s / 1e9)
    await cluster.run(50)
    assert cluster.status("train")["tuning"]["reason"] == "Disturbed"
    assert rig.agent.throttles  # and the contention is being ended
    await cluster.until_done()
    assert rig.node.limit_of(job.work) == 6
    rig.node.stop(hog)
