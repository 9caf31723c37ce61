"""One step of every job's tuning per round: read the job and its GPUs, take the step, write it.

A job belongs to the node where its rank 0 runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from coda.allocator import Tuning
from coda.allocator.resize import STATIC_CPU_MANAGER
from coda_agent.cluster import READ_ERRORS, AgentCaches, BackgroundWrites, LocalPod, TunedJob, tuned_job_from_json
from coda_agent.modes import within
from coda_agent.report import Metrics
from coda_agent.sensor import Senses
from coda_agent.settings import Settings
from coda_agent.tuning.windows import TuningObservation, Windows
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)


class Tuner:
    """Tunes the jobs of one node. `most_cores`: of this node, that pods can have."""

    def __init__(
        self, settings: Settings, most_cores: int, cluster: AgentCaches, metrics: Metrics, writes: BackgroundWrites
    ) -> None:
        self._mode = settings.tune
        self._most_cores = most_cores
        self._cluster = cluster
        self._metrics = metrics
        self._writes = writes
        self._windows = Windows(settings.tuning_config(), settings.settle_s)
        self._last_steps: dict[str, str] = {}  # by job uid: the last step, as logged
        self._read: dict[str, tuple[int, TunedJob | None]] = {}  # by job uid: version, and the job as read

    def step(self, senses: Senses, local: tuple[LocalPod, ...]) -> tuple[str, ...]:
        """Take one step for every job whose rank 0 runs here. Return a sentence for each job that cannot be read."""
        # 1. Read the jobs whose rank 0 runs here, by name.
        rank0 = {pod.member.job: pod for pod in local if pod.runs and pod.member is not None and pod.member.rank == 0}
        problems: list[str] = []
        jobs = {job.uid: (job, pod) for name, pod in rank0.items() if (job := self._read_job(name, pod, problems))}

        # 2. Forget all others.
        self._windows.forget_all_except(jobs)
        self._last_steps = {uid: step for uid, step in self._last_steps.items() if uid in jobs}
        self._read = {uid: read for uid, read in self._read.items() if uid in jobs}

        # 3. Decide and write, one job after the other.
        for job, pod in jobs.values():
            self._step(job, pod, senses)
        return tuple(problems)

    def _step(self, job: TunedJob, pod: LocalPod, senses: Senses) -> None:
        """What is not written now is decided again in the next round: its window stays open until then."""
        about = f"tuning {job.id}"
        rates = senses.cpu_by_pod.get(pod.uid)
        seen = TuningObservation(
            at_s=senses.at.monotonic_s,
            wall_s=senses.at.wall_s,
            container=self._cluster.container_of(pod),
            share=senses.least_gpu_share_of(pod),
            cpu_cores=None if rates is None else rates.cores,
            throttled_share=0.0 if rates is None else rates.throttled_share,
            why_not=senses.why_not_tuned(pod),
            may_step=self._cluster.pods_age_s() == 0 and self._writes.may_begin(about),
        )
        never = STATIC_CPU_MANAGER if pod.id in senses.exclusive_pods else pod.resize_obstacle
        job = replace(job, tuning_input=replace(job.tuning_input, never=never))
        tuning = self._windows.step(job, seen)
        tuning = None if tuning is None else within(self._mode, tuning)
        if tuning is None or tuning == job.tuning:
            return
        if self._writes.muted:
            self._log_step(job, tuning)
        write = partial(self._cluster.write_tuning, job, tuning)
        self._writes.begin(about, write, on_success=partial(self._on_written, job, tuning))

    def _on_written(self, job: TunedJob, tuning: Tuning) -> None:
        self._metrics.count_tuning_step(tuning.phase.value)
        self._log_step(job, tuning)

    def _log_step(self, job: TunedJob, tuning: Tuning) -> None:
        about = tuning.message or f"{job.tuning_input.cores if tuning.wish is None else tuning.wish.cores} cores"
        step = f"{tuning.phase.value}, {about}"
        if self._last_steps.get(job.uid) != step:
            log.info("%s: %s", job.id, step)
        self._last_steps[job.uid] = step

    def _read_job(self, name: str, pod: LocalPod, problems: list[str]) -> TunedJob | None:
        """The job, if it can be read and its attempt is the pod's."""
        item = self._cluster.job(name)
        if item is None or pod.member is None or item["metadata"]["uid"] != pod.member.job_uid:
            return None
        try:
            job = self._job_from_json(item)
        except READ_ERRORS as error:
            problems.append(f"job {name} cannot be read and is not tuned: {error}")
            return None
        if job is not None and job.fault:
            problems.append(f"the tuning of job {name} cannot be read and begins anew: {job.fault}")
        return job if job is not None and job.tuning_input.attempt == pod.member.attempt else None

    def _job_from_json(self, item: Json) -> TunedJob | None:
        uid, version = item["metadata"]["uid"], version_of(item)
        known = self._read.get(uid)
        if known is None or known[0] != version:
            known = self._read[uid] = (version, tuned_job_from_json(item, self._most_cores))
        return known[1]
