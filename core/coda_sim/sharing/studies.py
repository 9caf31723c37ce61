"""The two sharing studies that the command line offers, each as measures per policy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean

from coda.errors import InvalidInput
from coda.sharing.config import GIB
from coda.sharing.policies import SHARING_POLICIES, SharingPart, sharing_policy_of
from coda_sim.sharing.cluster_run import ClusterRun
from coda_sim.sharing.gpu_trace import GUARANTEED_TENANT, GpuTraceConfig, generated_jobs
from coda_sim.sharing.job_sets import random_set, run_set

GPU_TRACE, JOB_SETS = "gpu-trace", "job-sets"
SETS = 1000
_SET_POLICIES = ("serial", "parallel-fcfs", "memory-fcfs", "xonar", "xonar-log", "xonar-sum")

SharingMetrics = dict[str, float]


def policies_of(workload: str) -> tuple[str, ...]:
    """Return the policies that can run this workload. Raises InvalidInput for an unknown one."""
    if workload == GPU_TRACE:
        return tuple(SHARING_POLICIES)
    if workload == JOB_SETS:
        return _SET_POLICIES
    raise InvalidInput(f"--workload {workload}: with --sharing it is {GPU_TRACE} or {JOB_SETS}")


def check_sharing(workload: str, policy: str, without: Sequence[SharingPart]) -> None:
    """Return if this can be run; else raise InvalidInput."""
    sharing_policy_of(policy, without)
    if policy not in policies_of(workload):
        raise InvalidInput(f"--sharing {policy} needs tenants or a cluster: {workload} has {', '.join(_SET_POLICIES)}")


def run_sharing(workload: str, policy: str, without: Sequence[SharingPart], seed: int) -> SharingMetrics:
    """Run one policy on one workload. The same seed gives the same jobs to every policy, and the same result."""
    rule = sharing_policy_of(policy, without)
    if workload == JOB_SETS:
        rng = random.Random(seed)
        outcomes = [run_set(random_set(rng), rule) for _ in range(SETS)]
        jcts = sorted(jct_s for outcome in outcomes for jct_s in outcome.jcts_s)
        pairs = sum(outcome.pairs for outcome in outcomes)
        return {
            "jct_mean_s": mean(jcts),
            "jct_p99_s": jcts[int(0.99 * len(jcts))],
            "makespan_s": mean(max(outcome.jcts_s) for outcome in outcomes),
            "out_of_memory": sum(outcome.out_of_memory for outcome in outcomes) / max(1, pairs),
        }
    runs = ClusterRun(rule, [8] * 8, gpu_bytes=32 * GIB).run(generated_jobs(GpuTraceConfig(), seed))
    jcts = sorted(run.jct_s for run in runs)
    tenants = {True: [0.0], False: [0.0]}
    for run in runs:
        tenants[run.job.tenant == GUARANTEED_TENANT].append(run.jct_s)
    return {
        "jct_mean_s": mean(jcts),
        "jct_p99_s": jcts[int(0.99 * len(jcts))],
        "makespan_s": max(run.ended_s for run in runs),
        "jct_mean_tenant_a_s": mean(tenants[True][1:] or [0.0]),
        "jct_mean_tenant_b_s": mean(tenants[False][1:] or [0.0]),
        "stops_per_job": sum(run.stops for run in runs) / len(runs),
        "out_of_memory": sum(run.failures for run in runs) / len(runs),
    }
