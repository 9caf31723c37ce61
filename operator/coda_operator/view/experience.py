"""What tuning found: a job's own result for its next attempt, those of finished jobs for their owner's next job.

It comes from the TrainingJobs that the API server still has, and at the start from the history store. A job's owner is
its user.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from coda.allocator import SearchResult, Tuning
from coda.allocator.ranks import MOST_CORES
from coda.allocator.start_point import Experience, Tuned, add_experience, experienced_cores
from coda.errors import InvalidInput
from coda.model import FINISHED
from coda_kube.objects.pods.users import user_from_json
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.objects.read import AUTO
from coda_kube.objects.tuning_status import category_from_json, tuning_from_json, usual_cores

log = logging.getLogger(__name__)

Item = Mapping[str, Any]

SHOWN_S: Final = 4 * 3600.0
"""Seconds of tuning in which a job has paused if it does. Our choice: evaluation each 2 h is rare."""

_HAD: Final = (("request", "cpusPerReplica"), ("resize", "coresPerReplica"))
"""Where a status says what each rank of the last attempt had."""

_FINISHED: Final = frozenset(phase.value for phase in FINISHED)


class LearnedCores:
    """The cores that finished jobs were tuned to. Learning from a job twice changes nothing."""

    def __init__(self) -> None:
        self._experience: Experience = {}

    def learn_from(self, job: Item) -> None:
        """Learn from a job if it has finished and its tuning ended with an answer."""
        status = job.get("status") or {}
        if status.get("phase") not in _FINISHED or not status.get("tuning"):
            return
        tuning = _tuning_of(job)
        cores = taught_cores(tuning, job["spec"], seconds_from_time(status.get("completionTime")))
        if cores is None:
            return
        tuned = Tuned(
            owner=user_from_json(job["metadata"]),
            category=category_from_json(job["spec"]),
            gpus_per_replica=job["spec"]["gpusPerReplica"],
            cores_per_replica=cores,
        )
        self.learn(tuned)

    def learn(self, tuned: Tuned) -> None:
        """Learn from a finished job of which only this is known: the history store has it, the API server does not."""
        add_experience(self._experience, tuned)

    def cores_for(self, job: Item, ceiling_cores: int, part_cores: int) -> int | None:
        """Return the cores that the job's own tuning found, else those of its owner's jobs; None without both.

        At most `ceiling_cores`; those of other jobs at most `part_cores`, because the search goes up from there. So
        are its own, unless it had more: maybe no node holds what it only wished for."""
        gpus = job["spec"]["gpusPerReplica"]
        tuning = own_tuning(job)
        own = tuning.best_cores if tuning is not None else None
        if tuning is not None and own is not None:
            return max(1, min(own, ceiling_cores, max(part_cores, _had_cores(tuning, job["status"]))))
        owner = user_from_json(job["metadata"])
        category = category_from_json(job["spec"])
        return experienced_cores(self._experience, owner, category, gpus, part_cores)


def taught_cores(tuning: Tuning | None, spec: Item, ended_s: float) -> int | None:
    """Return the cores per rank that a finished job of this `spec` teaches; None: nothing.

    Fewer than such jobs begin with only if it showed what fewer cores cost its pauses, or was tuned for so long that it
    would have: a short test ends before its first evaluation."""
    found, pauses = tuning.found if tuning is not None else None, tuning.pauses if tuning is not None else None
    if not isinstance(found, SearchResult) or not found.teaches:
        return None
    has_shown = pauses is not None and (pauses.core_s > 0 or ended_s >= pauses.since_s + SHOWN_S)
    return found.cores if has_shown or found.cores >= usual_cores(spec, MOST_CORES) else None


def own_tuning(job: Item) -> Tuning | None:
    """Return the tuning of the job's earlier attempts; None if there is none, or the job's size changed."""
    spec, status = job["spec"], job.get("status") or {}
    if spec["cpusPerReplica"] != AUTO or not status.get("tuning"):
        return None
    if status.get("gpus") != spec["replicas"] * spec["gpusPerReplica"]:
        return None
    tuning = _tuning_of(job)
    rank_gpus = tuning.pauses.rank_gpus if tuning is not None and tuning.pauses is not None else 0
    return tuning if rank_gpus in (0, spec["gpusPerReplica"]) else None


def _had_cores(tuning: Tuning, status: Item) -> int:
    """Return the most cores per rank that an attempt is known to have had; 0 if none is."""
    begun, resized = ((status.get(name) or {}).get(field) for name, field in _HAD)
    points = tuning.found.curve if tuning.found is not None else ()
    watched = tuning.watch.cores if tuning.watch is not None else 0
    return max([begun or 0, resized or 0, watched, *(point.cores for point in points)])


def _tuning_of(job: Item) -> Tuning | None:
    try:
        return tuning_from_json(job["status"])
    except InvalidInput as error:
        metadata = job["metadata"]
        log.warning("%s/%s: %s; it is ignored", metadata["namespace"], metadata["name"], error)
        return None
