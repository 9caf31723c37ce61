"""One step of every job's tuning per round: read the job and its GPUs, take the step, write it.

A job belongs to the node where its rank 0 runs. The agents of its other nodes measure their ranks and report them in
their NodeProfiles."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from coda.allocator import Tuning
from coda.allocator.ranks import RankReport
from coda.allocator.resize import STATIC_CPU_MANAGER
from coda.contention import Protection
from coda.errors import CodaError
from coda_agent.cluster import (
    READ_ERRORS,
    AgentCaches,
    BackgroundWrites,
    LocalPod,
    Peers,
    TunedJob,
    tuned_job_from_json,
)
from coda_agent.modes import within
from coda_agent.report import Metrics
from coda_agent.sensor import Senses
from coda_agent.settings import Settings
from coda_agent.tuning.gang import Gang
from coda_agent.tuning.observation import TuningObservation
from coda_agent.tuning.rank_windows import RankWindows
from coda_agent.tuning.windows import Windows
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)


IMPOSSIBLE: Final = (CodaError, ArithmeticError)
"""What numbers that cannot be together raise. They come from the status of a job, and from agents of other nodes."""

STAYING: Final = frozenset({Protection.DAEMON_SET, Protection.STATIC})
"""Pods that are on the node whatever runs there."""

LastDisturbance = Callable[[str], float | None]
"""When contention or a neighbour last moved utilisations where a pod, by uid, works; None: never."""


class Tuner:
    """Tunes the jobs of one node."""

    def __init__(self, settings: Settings, cluster: AgentCaches, metrics: Metrics, writes: BackgroundWrites) -> None:
        self._mode = settings.tune
        self._node_cores = 1  # until the first step
        self._cluster = cluster
        self._metrics = metrics
        self._writes = writes
        config = settings.tuning_config()
        self._peers = Peers(cluster.read_profile, writes.now_s)
        self._gang = Gang(settings.node_name, self._peers)
        self._windows = Windows(config, settings.settle_s, self._gang)
        self._rank_windows = RankWindows(config.tuning, settings.settle_s)
        self.reports: tuple[RankReport, ...] = ()  # of the ranks here whose rank 0 is elsewhere
        self.jobs: tuple[TunedJob, ...] = ()  # whose rank 0 runs here, as they were read last
        self._last_steps: dict[str, str] = {}  # by job uid: the last step, as logged
        self._read: dict[str, tuple[int, TunedJob | None]] = {}  # by job uid: version, and the job as read

    def step(
        self, senses: Senses, local: tuple[LocalPod, ...], last_disturbance: LastDisturbance, node_cores: int
    ) -> tuple[str, ...]:
        """Take one step for every rank that runs here. Return a sentence for each that does not count.

        `node_cores`: the node's logical CPUs, of which some may come or go. Never raises: the agent's throttles must
        not end with a job that nobody can tune."""
        self._node_cores = self._windows.node_cores = node_cores
        # 1. Read the jobs whose rank 0 runs here, by name.
        rank0 = {pod.member.job: pod for pod in local if pod.runs and pod.member is not None and pod.member.rank == 0}
        problems: list[str] = []
        jobs = {job.uid: (job, pod) for name, pod in rank0.items() if (job := self._read_job(name, pod, problems))}

        self.jobs = tuple(job for job, _pod in jobs.values())

        # 2. Forget all others, and measure the ranks that are not rank 0.
        self._windows.forget_all_except(jobs)
        ranks = [pod for pod in local if pod.member and pod.runs and (pod.is_tuned or pod.member.job_uid in jobs)]
        reports = self._measure_others([pod for pod in ranks if pod.gpus], senses, last_disturbance, problems)
        self._gang.see(reports, self.jobs)
        self._last_steps = {uid: step for uid, step in self._last_steps.items() if uid in jobs}
        self._read = {uid: read for uid, read in self._read.items() if uid in jobs}

        # 3. Decide and write, one job after the other.
        most_cores = self._most_cores(local)
        for job, pod in jobs.values():
            job = replace(job, tuning_input=replace(job.tuning_input, most_cores=most_cores))
            try:
                self._step(job, pod, senses, self._observation(pod, senses, last_disturbance))
            except IMPOSSIBLE as error:
                problems.append(f"job {job.id} is not tuned: {error}")
            problems += _other_cores_text(pod, self._windows.other_cores(job), job.tuning_input.cores)
        return tuple(problems)

    def _most_cores(self, local: tuple[LocalPod, ...]) -> int:
        """The cores that one rank could have here: what the node gives to pods, without those that never leave it."""
        stays = [pod for pod in local if not pod.ended and not STAYING.isdisjoint(pod.protections)]
        given_m = min(1000 * self._node_cores, self._cluster.allocatable_m or 1000 * self._node_cores)
        stays_m = sum(round(1000 * pod.request_cores) for pod in stays)
        return max(1, (given_m - stays_m) // 1000)

    async def cancel(self) -> None:
        """End all reads under way."""
        await self._peers.cancel()

    def _measure_others(
        self, ranks: list[LocalPod], senses: Senses, last_disturbance: LastDisturbance, problems: list[str]
    ) -> tuple[RankReport, ...]:
        """Take one step for each of `ranks` that is not rank 0; return their reports."""
        others = [pod for pod in ranks if pod.member and pod.member.rank]
        self._rank_windows.forget_all_except({pod.uid for pod in others})
        for pod in others:
            try:
                self._rank_windows.step(pod, self._observation(pod, senses, last_disturbance))
            except IMPOSSIBLE as error:
                problems.append(f"pod {pod.id} is not measured for its job: {error}")
            problems += _other_cores_text(pod, self._rank_windows.other_cores.get(pod.uid), pod.cores)
        reports = self._rank_windows.reports
        led = {(pod.member.job_uid, pod.member.attempt) for pod in ranks if pod.member and not pod.member.rank}
        self.reports = tuple(report for report in reports if (report.job_uid, report.attempt) not in led)
        return reports

    def _observation(self, pod: LocalPod, senses: Senses, last_disturbance: LastDisturbance) -> TuningObservation:
        rates = senses.cpu_by_rank.get(pod.uid)
        return TuningObservation(
            at_s=senses.at.monotonic_s,
            wall_s=senses.at.wall_s,
            container=pod.container,
            share=senses.least_gpu_share_of(pod),
            cpu_cores=None if rates is None else rates.cores,
            throttled_share=0.0 if rates is None else rates.throttled_share,
            # The static CPU manager takes limits away: no proof either way.
            cores=None if pod.id in senses.exclusive_pods else senses.cores_by_rank.get(pod.uid),
            disturbed_at_s=last_disturbance(pod.uid),
            why_not=senses.why_not_tuned(pod),
        )

    def _step(self, job: TunedJob, pod: LocalPod, senses: Senses, seen: TuningObservation) -> None:
        """What is not written now is decided again in the next round: its window stays open until then."""
        about = f"tuning {job.id}"
        seen = replace(seen, may_step=self._cluster.pods_age_s() == 0 and self._writes.may_begin(about))
        never = STATIC_CPU_MANAGER if pod.id in senses.exclusive_pods else pod.resize_obstacle
        least = max(1, min(pod.asked_anyway, job.tuning_input.cores))
        job = replace(job, tuning_input=replace(job.tuning_input, never=never, least=least))
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
            known = self._read[uid] = (version, tuned_job_from_json(item, self._node_cores))
        return known[1]


def _other_cores_text(pod: LocalPod, cores: float | None, said: int) -> list[str]:
    """A sentence, if the windows of a rank do not count for its cores."""
    if cores is None:
        return []
    may = "all cores" if math.isinf(cores) else f"{cores:g} cores"
    return [f"pod {pod.id} may use {may} here, and its job says {said}: its windows do not count until it is as said"]
