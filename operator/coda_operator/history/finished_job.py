"""A finished TrainingJob -> its record."""

from __future__ import annotations

import logging
from typing import Final

from coda.allocator import SearchResult, Tuning
from coda.errors import InvalidInput
from coda.history import Ending, FinishedJob
from coda.history.record import RECORDED_REASON_CHARACTERS
from coda.history.time_spent import Doing, Split, StatusTimes, TimeSpent, split_of
from coda.lifecycle import Progress
from coda.model import FINISHED, Phase
from coda.model.trial_run import TrialOutcome
from coda_kube.objects.pods.users import LONGEST, user_from_json
from coda_kube.objects.tuning_status import tuning_from_json
from coda_operator.view import JobRecord

log = logging.getLogger(__name__)

MODEL_LABEL: Final = "app.kubernetes.io/name"


def finished_job(job: JobRecord, spent: TimeSpent | None, now_s: float) -> FinishedJob:
    """Return the record of a job that has finished, or is being deleted and has no pods left.

    `spent`: the account of its time, as far as this process saw it."""
    spec, metadata, progress = job.json["spec"], job.json["metadata"], job.progress
    status = job.json.get("status") or {}
    has_ended = progress.phase in FINISHED
    ended_s = (progress.completion_s if has_ended else 0.0) or now_s
    if spent is not None:  # it has whole seconds, and knows of an end that was seen long after
        ended_s = float(spent.since_s if spent.doing is Doing.ENDED else int(ended_s))
    gpus = spec["replicas"] * spec["gpusPerReplica"]
    times = StatusTimes(
        queued_s=min(progress.queued_s, spent.began_s) if spent is not None else progress.queued_s,
        launched_s=0.0 if progress.is_tried else progress.launch_s,
        started_s=0.0 if progress.is_tried else min(progress.start_s, ended_s),
        ended_s=ended_s,
        gpus=gpus,
    )
    split = split_of(spent, times)
    tuning = _tuning(job)
    cores_given = (status.get("cores") or 0) // (1 if progress.is_tried else spec["replicas"])
    return FinishedJob(
        uid=job.uid,
        attempt=progress.attempt,
        namespace=metadata["namespace"],
        owner=_text(user_from_json(metadata), LONGEST),
        name=metadata["name"],
        category=job.category.value if job.category is not None else "",
        model=_text((metadata.get("labels") or {}).get(MODEL_LABEL, ""), 63),
        replicas=spec["replicas"],
        gpus_per_replica=spec["gpusPerReplica"],
        cores_asked=spec["cpusPerReplica"] if isinstance(spec["cpusPerReplica"], int) else None,
        cores_tuned=_cores_tuned(tuning),
        cores_given=cores_given,
        ending=_ending(progress.phase),
        reason=_text(progress.reason, RECORDED_REASON_CHARACTERS) if has_ended else "Deleted",
        failure_class=_text((status.get("failure") or {}).get("reason", ""), 64),
        queued_s=times.queued_s,
        started_s=times.started_s,
        ended_s=times.ended_s,
        waits=tuple((_text(cause, RECORDED_REASON_CHARACTERS), seconds) for cause, seconds in split.waits),
        held_s=split.held_s,
        run_s=split.run_s,
        idle_gpu_s=_idle_gpu_s(tuning, cores_given, gpus, split),
        failures=progress.failures,
        lost_s=progress.lost_s,
        summed_gpu_s=split.gpu_s,
        summed_lost_gpu_s=progress.lost_gpu_s,
        trial=_trial_outcome(progress, times.ended_s),
        trial_s=_trial_s(progress, times.ended_s),
    )


def _trial_outcome(progress: Progress, ended_s: float) -> str:
    """What came of its trial; UNCLEAR if the job went while that ran, empty if it had none or never began it."""
    trial = progress.trial
    if trial is None or (trial.is_open and not _trial_s(progress, ended_s)):
        return ""
    return (trial.outcome or TrialOutcome.UNCLEAR).value


def _trial_s(progress: Progress, ended_s: float) -> float:
    """Seconds that its trial had its GPU, also of a job that goes while it runs."""
    trial = progress.trial
    if trial is None:
        return 0.0
    is_under_way = trial.is_open and progress.is_tried and progress.launch_s > 0
    return trial.held_s + (max(0.0, ended_s - progress.launch_s) if is_under_way else 0.0)


def _ending(phase: Phase | None) -> Ending:
    if phase is Phase.SUCCEEDED:
        return Ending.SUCCEEDED
    return Ending.FAILED if phase is Phase.FAILED else Ending.DELETED


def _tuning(job: JobRecord) -> Tuning | None:
    try:
        return tuning_from_json(job.json.get("status") or {})
    except InvalidInput as error:
        log.warning("%s: %s; its record has no cores", job.key, error)
        return None


def _cores_tuned(tuning: Tuning | None) -> int | None:
    """What the store teaches the owner's next jobs: as in `LearnedCores`, only cores that a search found."""
    found = tuning.found if tuning is not None else None
    return found.cores if isinstance(found, SearchResult) and found.teaches else None


def _idle_gpu_s(tuning: Tuning | None, cores: int, gpus: int, split: Split) -> float | None:
    """GPUs are idle until all ranks run, and then as measured with the cores that the job had at its end.

    Attempts of another size count in proportion."""
    points = tuning.found.curve if tuning is not None and tuning.found is not None else ()
    share = next((point.share for point in points if point.cores == cores), None)
    if share is None:
        return None
    held_gpu_s = gpus * split.held_s if split.gpu_s is None else split.gpu_s
    return held_gpu_s * (1.0 - split.run_s * share / split.held_s) if split.held_s else 0.0


def _text(words: str, most: int) -> str:
    """PostgreSQL stores no NUL, and the columns have a limit."""
    return words.replace("\0", "")[:most]
