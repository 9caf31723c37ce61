"""The spec of a job as its present attempt has it: a trial is a job of one rank with one GPU.

Whoever reads a TrainingJob's size reads it here, so that a trial needs no case of its own anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coda.model import FINISHED
from coda.model.trial_run import TrialOutcome, TrialRun, TrialTerms
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_kube.words import word_or

Item = Mapping[str, Any]

TRIAL_VARIABLE: Final = "CODA_TRIAL"
"""Set to 1 for the main container of a trial, and absent otherwise."""
_NOT_TRIED: Final = frozenset({"locality", "stopWhen", "growMemoryTo", "resumable", "stopNoticeSeconds"})
"""What a trial has no use for: it is too short to be stopped, moved, grown or to converge."""
_FINISHED: Final = frozenset(phase.value for phase in FINISHED)


def spec_of_attempt(job: Item) -> Item:
    """Return the spec of a TrainingJob for its present attempt. O(fields) for a trial, else the spec itself."""
    spec: Item = job["spec"]
    status = job.get("status") or {}
    return tried_spec(spec, status.get("coresMultipleOf") or 1) if runs_trial(status) else spec


def runs_trial(status: Item) -> bool:
    """True while the present attempt is a trial, until its pod is gone."""
    trial = status.get("trial")
    is_mine = bool(trial) and (trial or {}).get("attempt") == (status.get("attempt") or 1)
    return is_mine and status.get("phase") not in _FINISHED


def brings_volumes(spec: Item) -> bool:
    """True if a volume is made with each pod of the job, and ends with it: kube-scheduler binds none before.

    Volumes that a webhook adds are not seen."""
    volumes = ((spec.get("template") or {}).get("spec") or {}).get("volumes") or ()
    return any("ephemeral" in volume for volume in volumes)


def tried_spec(spec: Item, cores_multiple: int = 1) -> Item:
    """Return the spec of a job's trial. One rank with one GPU, and its part of a fixed number of cores, rounded up.

    `cores_multiple`: to a multiple of it, since a kubelet refused other cores."""
    cores, gpus = spec.get("cpusPerReplica"), int(spec["gpusPerReplica"])
    shape: Json = {
        "replicas": 1,
        "gpusPerReplica": 1,
        "activeDeadlineSeconds": max(1, int(trial_terms_from_json(spec).run_s)),
    }
    if isinstance(cores, int):
        shape["cpusPerReplica"] = -(-cores // (gpus * cores_multiple)) * cores_multiple
    return {name: value for name, value in spec.items() if name not in _NOT_TRIED} | shape


def trial_terms_from_json(spec: Item) -> TrialTerms:
    """Return how long the trial of a job may take; the defaults where it does not say."""
    trial, usual = spec.get("trial") or {}, TrialTerms()
    return TrialTerms(
        run_s=float(trial.get("runSeconds", usual.run_s)), wait_s=float(trial.get("waitSeconds", usual.wait_s))
    )


def trial_json(trial: TrialRun) -> Json:
    """Return `status.trial`. What is not known is left out."""
    fields = {
        "since": time_from_seconds(trial.since_s) if trial.since_s else None,
        "outcome": trial.outcome.value if trial.outcome is not None else None,
        "seconds": int(trial.held_s) or None,
        "message": trial.message or None,
    }
    return {"attempt": trial.attempt} | {name: value for name, value in fields.items() if value is not None}


def trial_from_json(status: Item) -> TrialRun | None:
    """Return the trial of a job, as `trial_json` wrote it; None if it has none."""
    trial = status.get("trial")
    if not trial:
        return None
    outcome = trial.get("outcome")
    return TrialRun(
        attempt=trial["attempt"],
        since_s=seconds_from_time(trial.get("since")),
        outcome=word_or(TrialOutcome.UNCLEAR, outcome) if outcome else None,
        held_s=float(trial.get("seconds") or 0),
        message=trial.get("message") or "",
    )
