"""What each measure means, in a sentence for people, and the words that all of them use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

GLOSSARY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "GPU job": "a job that asks for GPUs; all its ranks start together or none does",
        "CPU job": "a job that asks for cores alone",
        "wait": "all the time of a job without nodes: before its first start, and after each stop",
        "JCT": "job completion time: from submission to end",
        "held": "given to a job, whether the job uses it or not",
        "busy, utilisation": "at work: a GPU that waits for data is held and not busy",
        "mean": "the average of all jobs; a few very long waits raise it much",
        "median, p90, p99": "of 100 jobs, 50, 90 or 99 had less",
        "bounded slowdown": "completion time over run time, where jobs shorter than 10 s count as 10 s; 1 is best",
        "lost work": "work that was done and thrown away, because its job was stopped and began again",
        "abort, migration, preemption": "a stop of a CPU job, of a guest that moves, of a job whose turn is over",
        "throttle": "a CPU job slowed down, because it took the memory bandwidth of training",
        "promise": "nodes kept free for a job that has waited long",
        "seed": "a number that fixes all that is random: the same seed gives the same run",
        "interval": "half the width of the 95 % interval of the mean over the seeds",
    }
)


def _of_jobs(kind: str) -> dict[str, str]:
    jobs = f"{kind.upper()} jobs"
    found = {
        f"{kind}_started_{key}": f"Of all {jobs}, the part that waited no longer than {text} in all. Higher is better."
        for key, text in {"10s": "10 s", "3min": "3 minutes", "10min": "10 minutes", "1h": "an hour"}.items()
    }
    amounts = {
        "mean": "The average",
        "p50": "The median",
        "p90": "Nine in ten have less than this",
        "p99": "99 in 100 have less than this",
        "most": "The longest",
    }
    found |= {f"{kind}_wait_{key}_s": f"{said}: waits of {jobs}. Lower is better." for key, said in amounts.items()}
    for key in ("mean", "p99"):
        found[f"{kind}_first_wait_{key}_s"] = f"{amounts[key]}: from submission to first start of {jobs}."
        found[f"{kind}_jct_{key}_s"] = f"{amounts[key]}: from submission to end of {jobs}. Lower is better."
    return found


MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gpu_util_all": "Of all GPUs, the part that is at work, on average over time. Higher is better.",
        "gpu_util_queueing": "The same, only over the times in which a GPU job waits. Idle GPUs hurt most then.",
        "gpu_util_active": "Of the GPUs that jobs hold, the part at work. Too few cores keep it low.",
        "gpu_active_all": "Of all GPUs, the part that jobs hold.",
        "gpu_active_queueing": "The same, only over the times in which a GPU job waits.",
        "useful_gpu_hours_per_hour": "GPU hours of work that counted, for each hour of the run.",
        "fragmentation": "Of all GPUs, the part that nobody holds while a GPU job waits. Lower is better.",
        "fragmentation_cores": "Of these, GPUs on nodes without enough free cores for the job that waits.",
        "fragmentation_scatter": "Of these, GPUs that are free, but too few of them together.",
        "fragmentation_memory": "Of these, GPUs on nodes without enough free memory.",
        "fragmentation_quota": "Of these, GPUs that the policy keeps for others, or that a quota forbids.",
        "cpu_active_all": "Of all cores, the part that jobs hold.",
        **_of_jobs("gpu"),
        "gpu_slowdown_mean": "How many times longer than its run time a GPU job took, on average. 1 is best.",
        "gpu_slowdown_1": "The same, of jobs with one GPU.",
        "gpu_slowdown_2_7": "The same, of jobs with 2 to 7 GPUs.",
        "gpu_slowdown_8_up": "The same, of jobs with 8 GPUs or more.",
        **_of_jobs("cpu"),
        "user_wait_p99_worst_s": "Each user's 99th percentile of waits; this is the largest of them.",
        "jain_users": "How equal users fare: 1 if all are equal, near 0 if one has everything.",
        "makespan_s": "From the first submission to the last end.",
        "tuning_steps_mean": "How many numbers of cores are tried until the best one is found, on average.",
        "cores_gained_1_5": "GPU jobs that ended with 1 to 5 cores more than they asked for.",
        "cores_gained_more": "GPU jobs that ended with more cores than that.",
        "cores_lost": "GPU jobs that ended with fewer cores than they asked for, without loss of speed.",
        "cores_same": "GPU jobs that ended with the cores that they asked for.",
        "throttles": "How often a CPU job was slowed down for a training job.",
        "victim_seconds": "Time that jobs were slowed by the memory traffic of others, over all jobs.",
        "victim_lost_gpu_s": "GPU seconds that this cost.",
        "aborts": "CPU jobs that were stopped and began again.",
        "migrations": "Jobs that were stopped to move to other nodes.",
        "preemptions": "Jobs that were stopped so that others have their turn.",
        "lost_gpu_s": "GPU seconds of work that was thrown away by stops.",
        "lost_core_s": "Core seconds of work of CPU jobs that was thrown away by stops.",
        "promised_gpu_s": "GPU seconds that stayed idle, because nodes were kept for a promised job.",
        "promised_most_gpu_s": "The largest amount of this for a single job.",
        "jobs_finished": "Jobs of the measured time that ended.",
        "jobs_refused": "Jobs that no node could hold, or that the policy never started. No measure of waits has them.",
        "rows_skipped": "Rows of the trace that cannot be read.",
        "rows_changed": "Rows that got assumed or rounded cores, or were split to fit; the report counts each kind.",
    }
)
"""By key of `summary.json`. A test keeps it complete."""
