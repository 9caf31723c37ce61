"""Which jobs are looked at when, and what of them is written: at most once in `progress_s` a job, and only news."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from coda.errors import InvalidInput
from coda.progress import (
    JobReport,
    Pace,
    StopRule,
    TrainingProgress,
    convergence_text,
    pace_after,
    progress_after,
    report_from_bytes,
    seconds_left,
)
from coda.progress.training_progress import DEFAULT_MARGIN
from coda_agent.cluster import READ_ERRORS, AgentCaches, BackgroundWrites, LocalPod
from coda_agent.gpus import Moment
from coda_agent.progress.report_file import FoundReport
from coda_kube.job_progress import progress_from_json, progress_json, stop_rule_from_json
from coda_kube.objects.json_types import Json

_TIMES: Final = frozenset({"estimatedEnd"})
"""What is no news alone: it follows from the rest and the clock."""


@dataclass(slots=True)
class _Known:
    """What is kept of a pod between two looks; lost with the process, but for what the status says."""

    look_again_s: float
    progress: TrainingProgress | None = None
    pace: Pace | None = None


class ProgressFollower:
    """Follows the jobs whose rank 0 runs here."""

    def __init__(self, every_s: float, cluster: AgentCaches, writes: BackgroundWrites) -> None:
        self._every_s = every_s
        self._cluster = cluster
        self._writes = writes
        self._known: dict[str, _Known] = {}  # by pod uid

    def due(self, local: tuple[LocalPod, ...], now_s: float) -> tuple[LocalPod, ...]:
        """Return the pods whose files are to be read now; all others that do not run here are forgotten.

        One that is to stop is read each time: it is waited for."""
        rank0 = [pod for pod in local if pod.runs and pod.member is not None and pod.member.rank == 0]
        self._known = {pod.uid: self._known.get(pod.uid) or _Known(now_s) for pod in rank0}
        due = tuple(pod for pod in rank0 if pod.stop is not None or now_s >= self._known[pod.uid].look_again_s)
        for pod in due:
            self._known[pod.uid].look_again_s = now_s + self._every_s
        return due

    def take(self, pods: tuple[LocalPod, ...], found: Mapping[str, FoundReport], now: Moment) -> tuple[str, ...]:
        """Judge what was found, by pod uid, and begin to write what is news. Return a sentence for each job that is
        not what this agent can read; what a user wrote wrongly stands in the status of the job."""
        problems: list[str] = []
        for pod in pods:
            try:
                self._take(pod, found[pod.uid], now)
            except READ_ERRORS as error:
                problems.append(f"the progress of job {pod.member and pod.member.job} is not followed: {error}")
        return tuple(problems)

    def _take(self, pod: LocalPod, found: FoundReport, now: Moment) -> None:
        known, member = self._known[pod.uid], pod.member
        if member is None or (found.content is None and not found.fault):
            return
        job = self._cluster.job(member.job)
        if job is None or job["metadata"]["uid"] != member.job_uid:
            return
        status, rule = job.get("status") or {}, stop_rule_from_json(job["spec"])
        before = known.progress or _told(status, member.attempt)
        report, fault = (JobReport(), "") if found.content is None else report_from_bytes(found.content)
        margin = DEFAULT_MARGIN if rule is None else rule.margin
        progress = progress_after(before, report, member.attempt, now.wall_s, margin)
        known.pace = pace_after(known.pace, progress.done_share, now.monotonic_s)
        left_s = seconds_left(known.pace, now.monotonic_s)
        progress = replace(
            progress,
            end_s=0.0 if left_s is None else now.wall_s + left_s,
            message=found.fault or fault or _advice(progress, rule),
        )
        known.progress = progress
        if _news(progress_json(progress)) != _news(status.get("progress") or {}):
            write = partial(self._cluster.write_progress, job["metadata"], progress)
            self._writes.begin(f"progress {member.job}", write)


def _told(status: Json, attempt: int) -> TrainingProgress | None:
    """What an agent before this one knew of the attempt."""
    try:
        told = progress_from_json(status)
    except InvalidInput:
        return None  # it begins anew, and is written whole
    return told if told is not None and told.attempt == attempt else None


def _advice(progress: TrainingProgress, rule: StopRule | None) -> str:
    why = convergence_text(progress, rule)
    return why if not why or rule is None or rule.stops else f"{why}; stopWhen.action Stop would end the job now"


def _news(progress: Json) -> Json:
    return {name: value for name, value in progress.items() if name not in _TIMES}
