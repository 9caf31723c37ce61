"""TrainingJob JSON -> what the life cycle looks at; pods are read by `rank_pods`. Reads only, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coda.allocator.start_point import Category, Hints
from coda.lifecycle.state import Progress, RankPod, Situation, Terms
from coda.model.job import Phase
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.objects.read import placement_from_json
from coda_kube.objects.tuning_status import resize_from_json

Item = Mapping[str, Any]


def situation_from_json(
    job: Item,
    pods: Iterable[RankPod],
    unready_since_s: Mapping[str, float],
    *,
    vanished: frozenset[int] = frozenset(),
    epoch: int | None = None,
) -> Situation:
    """Everything `coda.lifecycle.steps.next_step` wants to know of one job."""
    status = job.get("status") or {}
    return Situation(
        terms=terms_from_json(job["spec"]),
        generation=job["metadata"]["generation"],
        progress=progress_from_json(status),
        deleting="deletionTimestamp" in job["metadata"],
        placement=placement_from_json(status),
        epoch=epoch,
        pods=tuple(sorted(pods, key=lambda pod: (pod.attempt, pod.rank, pod.uid))),
        vanished=vanished,
        unready_since_s=unready_since_s,
    )


def terms_from_json(spec: Item) -> Terms:
    """`spec` of a TrainingJob; the CRD's defaults are in it."""
    return Terms(
        replicas=spec["replicas"],
        retries=spec["retries"],
        rank_zero_decides=spec["successPolicy"] == "RankZero",
        active_deadline_s=spec.get("activeDeadlineSeconds"),
        start_deadline_s=spec["startDeadlineSeconds"],
        ttl_s=spec.get("ttlSecondsAfterFinished"),
        suspend=spec["suspend"],
    )


def tuning_from_json(spec: Item) -> tuple[Category | None, Hints]:
    """What the user said that guides the first guess of cores."""
    hints = spec.get("hints") or {}
    category = spec.get("category")
    return Category(category) if category else None, Hints(
        pipelined=bool(hints.get("pipelined")),
        many_weights=bool(hints.get("manyWeights")),
        complex_processing=bool(hints.get("complexProcessing")),
    )


def progress_from_json(status: Item) -> Progress:
    """The operator's part of the status, as `reporting.status_json` wrote it."""
    phase = status.get("phase")
    return Progress(
        phase=Phase(phase) if phase else None,
        attempt=status.get("attempt") or 1,
        failures=status.get("failures") or 0,
        disruptions=status.get("disruptions") or 0,
        generation=status.get("observedGeneration") or 0,
        queued_s=seconds_from_time(status.get("queuedTime")),
        returned=bool(status.get("returned")),
        not_before_s=seconds_from_time(status.get("notBefore")),
        launch_s=seconds_from_time(status.get("launchTime")),
        start_s=seconds_from_time(status.get("startTime")),
        completion_s=seconds_from_time(status.get("completionTime")),
        avoid={entry["name"]: seconds_from_time(entry["until"]) for entry in status.get("avoidNodes") or ()},
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        resize=resize_from_json(status),
    )
