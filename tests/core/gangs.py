"""A gang of two ranks in the middle of its life, in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coda.lifecycle import LifecycleConfig, PodState, Progress, RankPod, Situation, Terms
from coda.model import Phase, Placement, PlacementState

CONFIG = LifecycleConfig()
NOW_S = 1000.0


def progress(phase: Phase | None, **changes: object) -> Progress:
    base = Progress(phase=phase, generation=1, queued_s=900.0, launch_s=990.0, start_s=0.0)
    return replace(base, **changes)  # type: ignore[arg-type]  # tests name the fields they change


def plan(attempt: int = 1, replicas: int = 2, **changes: object) -> Placement:
    base = Placement(
        attempt=attempt,
        plan_id="p1",
        epoch=7,
        generation=1,
        state=PlacementState.RELEASED,
        nodes=("n1",) * replicas,
        cpus_per_replica=4,
        committed_s=990.0,
        bind_deadline_s=1050.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # as above


def pod(rank: int, *, attempt: int = 1, **changes: object) -> RankPod:
    base = RankPod(
        name=f"j-{attempt}-{rank}",
        uid=f"u-{attempt}-{rank}",
        attempt=attempt,
        rank=rank,
        plan_id="p1",
        node="n1",
        pinned_to="n1",
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # as above


def situation(phase: Phase | None, *pods: RankPod, **changes: object) -> Situation:
    base = Situation(
        terms=Terms(replicas=2),
        generation=1,
        progress=progress(phase),
        held=True,
        placement=plan(),
        epoch=7,
        pods=tuple(pods),
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # as above


def running(rank: int, **changes: Any) -> RankPod:
    return pod(rank, state=PodState.STARTED, **changes)
