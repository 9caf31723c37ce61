"""Sharing simulated: the numbers of the papers that the model must give, and what holds for every policy."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from coda.errors import InvalidInput
from coda.sharing.config import GIB
from coda.sharing.policies import SHARING_POLICIES, SharingPart, sharing_policy_of
from coda_sim.sharing.cluster_run import ClusterRun, SharedRun
from coda_sim.sharing.gpu_trace import GpuTraceConfig, SharingJob, generated_jobs
from coda_sim.sharing.job_sets import CARD_BYTES, SetOutcome, random_set, run_set
from coda_sim.sharing.model_table import MEASURED, PROFILES
from coda_sim.sharing.pair_speed import host_speed, unpaced_speed
from coda_sim.sharing.studies import check_sharing

SETS = tuple(random_set(random.Random(seed)) for seed in range(1000))
TRACE = generated_jobs(GpuTraceConfig(jobs=300), seed=1)


def outcomes(name: str) -> list[SetOutcome]:
    return [run_set(one, sharing_policy_of(name)) for one in SETS]


def mean_jct(found: list[SetOutcome]) -> float:
    return mean(jct_s for outcome in found for jct_s in outcome.jcts_s)


def on_64_gpus(name: str, *without: SharingPart) -> tuple[SharedRun, ...]:
    return ClusterRun(sharing_policy_of(name, without), [8] * 8, gpu_bytes=32 * GIB).run(TRACE)


def mean_of_a(runs: tuple[SharedRun, ...]) -> float:
    return mean(run.jct_s for run in runs if run.job.tenant == "a")


def test_the_fitted_numbers_come_out_as_they_were_put_in() -> None:
    """Not a proof: ESPnet's bursts, ResNet-50 beside it and 5 % on the host are fitted to these."""
    espnet, resnet = PROFILES["espnet"], PROFILES["resnet50"]
    assert 20.1 / unpaced_speed(espnet, [resnet]) == pytest.approx(105.2, rel=0.03)
    assert MEASURED.speed("resnet50", "espnet") == 0.57
    assert 91.1 / host_speed("resnet50", 0.05) == pytest.approx(541.6, rel=0.15)


@pytest.mark.parametrize(
    ("policy", "gcn_min", "resnet_min", "ill"),
    [
        ("yarn-cs-preempt", None, 91.1, (1, 0)),  # GCN fails in the paper, and begins again here
        ("yarn-cs", 43.0, 108.2, (0, 0)),
        ("pack", 43.1, None, (0, 1)),  # ResNet-50 fails there, and begins again here
        ("universal-memory", 43.4, 541.6, (0, 0)),
        ("antman", 43.9, 91.8, (0, 0)),
    ],
)
def test_antmans_two_jobs_on_one_gpu(
    policy: str, gcn_min: float | None, resnet_min: float | None, ill: tuple[int, int]
) -> None:
    """Tables 1 and 2: GCN has no quota and runs since 26 min when ResNet-50 comes, which has. The band is 3 %."""
    gcn = SharingJob(uid="a", tenant="b", gpus=1, submit_s=0, work_s=43.0 * 60, profile=PROFILES["gcn"])
    resnet = SharingJob(uid="b", tenant="a", gpus=1, submit_s=26 * 60, work_s=91.1 * 60, profile=PROFILES["resnet50"])
    runs = ClusterRun(sharing_policy_of(policy), [1], gpu_bytes=32 * GIB).run([gcn, resnet])
    for run, minutes in zip(runs, (gcn_min, resnet_min), strict=True):
        assert minutes is None or run.jct_s / 60 == pytest.approx(minutes, rel=0.03)
    assert (sum(run.stops for run in runs), sum(run.failures for run in runs)) == ill


def test_two_jobs_that_fail_together_on_the_only_gpu_run_one_after_the_other() -> None:
    large = [
        SharingJob(uid=uid, tenant="b", gpus=1, submit_s=0, work_s=600, profile=PROFILES["resnet50"]) for uid in "ab"
    ]
    runs = ClusterRun(sharing_policy_of("parallel-fcfs"), [1], gpu_bytes=32 * GIB).run(large)
    assert [(run.ended_s, run.failures) for run in runs] == [(600, 1), (1200, 1)]


def test_xonars_means_gain_at_least_half_of_what_is_printed_and_nothing_runs_out_of_memory() -> None:
    serial, parallel, xonar = outcomes("serial"), outcomes("parallel-fcfs"), outcomes("xonar")
    assert mean_jct(xonar) <= mean_jct(serial) * (1 - 0.436 / 2)
    assert mean_jct(xonar) <= mean_jct(parallel) * (1 - 0.137 / 2)
    assert sum(outcome.out_of_memory for outcome in xonar) == 0
    assert sum(outcome.out_of_memory for outcome in parallel) > 0
    # The filter alone gains too, and is told apart from Eq. 1.
    assert mean_jct(xonar) < mean_jct(outcomes("memory-fcfs")) < mean_jct(parallel)


def test_15_percent_of_random_pairs_do_not_fit_as_fitted() -> None:
    too_large = mean(one[0].peak_bytes + one[1].peak_bytes > CARD_BYTES for one in SETS)
    assert too_large == pytest.approx(0.152, abs=0.03)


def test_tenant_a_is_as_fast_as_with_preemption_and_nobody_is_stopped() -> None:
    antman, preemptive = on_64_gpus("antman"), on_64_gpus("yarn-cs-preempt")
    assert mean_of_a(antman) == pytest.approx(mean_of_a(preemptive), rel=0.03)
    assert sum(run.stops for run in antman) == 0 < sum(run.stops for run in preemptive)
    assert mean(run.jct_s for run in antman) < mean(run.jct_s for run in on_64_gpus("serial"))


def test_without_pacing_tenant_a_is_slower_than_the_band_allows() -> None:
    assert mean_of_a(on_64_gpus("antman", SharingPart.PACING)) > 1.03 * mean_of_a(on_64_gpus("antman"))


@pytest.mark.parametrize("name", SHARING_POLICIES)
def test_every_policy_ends_every_job_not_before_its_time_and_alike_each_time(name: str) -> None:
    runs = on_64_gpus(name)
    assert [run.job.uid for run in runs] == [job.uid for job in TRACE]
    for run in runs:
        assert run.started_s >= run.job.submit_s
        assert run.ended_s - run.started_s >= run.job.work_s - 1e-6
    assert on_64_gpus(name) == runs


@pytest.mark.parametrize("name", SHARING_POLICIES)
def test_a_job_alone_takes_its_own_time(name: str) -> None:
    job = SharingJob(uid="j", tenant="b", gpus=2, submit_s=5, work_s=100, profile=PROFILES["bert"])
    (run,) = ClusterRun(sharing_policy_of(name), [2], gpu_bytes=32 * GIB).run([job])
    assert (run.started_s, run.ended_s) == (5, 105)


def test_what_a_policy_does_not_have_is_refused() -> None:
    for workload, name in (("job-sets", "antman"), ("month", "xonar"), ("gpu-trace", "nobody")):
        with pytest.raises(InvalidInput):
            check_sharing(workload, name, [])
    with pytest.raises(InvalidInput, match="xonar has no pacing"):
        check_sharing("job-sets", "xonar", [SharingPart.PACING])
