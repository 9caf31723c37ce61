"""What a job waits for: pods that must end first, and times at which the answer changes by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Final

from coda.lifecycle.state import LifecycleConfig, Progress, RankPod, Situation, Step, Untuned, kept_s, of_attempt
from coda.model.job import FINISHED, Phase

NOT_TUNED_S = 60.0
"""Seconds that a job runs before it says that nobody looks for its cores. Our choice: an agent begins in seconds."""
_LOOK_AGAIN_S: Final[Mapping[Untuned, float]] = {Untuned.UNKNOWN: NOT_TUNED_S, Untuned.SEARCHED: 600.0}
"""After these it is looked again whether an agent is there. Our choice: a search takes minutes, and no write."""

NOT_CREATED_S = 60.0
"""Seconds that a kubelet creates a container, or runs one before the main one, until the job says so. Our choice:
most images are there, or pulled."""

WAITS_FOR = "; waits for "
"""Joins what happened with what the job waits for, so that the second half can be replaced."""

LEFT_S = 900.0
"""The most that is left of a time which another operator wrote. Our choice: clocks that differ by more are noticed."""


def end_s(now: Situation, written_s: float, length_s: float) -> float:
    """Return when a time of the life cycle is over that was written to end at `written_s`, after `length_s`.

    An operator that led before may have had another clock. So from when this one found the job at least half of the
    length is left, `LEFT_S` at most. Source: as for placements, our choice."""
    return max(written_s, now.found_s + min(LEFT_S, length_s / 2))


def starts_by_s(now: Situation, progress: Progress) -> float:
    """Return until when all ranks of the attempt must have started: so long after the last was bound.

    inf while one is not: its bind deadline may be later. A binding that nobody saw counts as the launch. O(pods)."""
    pods = of_attempt(now)
    if any(not pod.node for pod in pods):
        return inf
    bound_s = max((pod.bound_s or 0.0 for pod in pods), default=0.0)
    return end_s(now, max(progress.launch_s, bound_s) + now.terms.start_deadline_s, now.terms.start_deadline_s)


def runs_until_s(now: Situation, progress: Progress) -> float | None:
    """Return when the job has run for as long as it may, over all attempts. None: for ever, or it has no launch.

    The planner's certain ends are the same sum (`promises.expected_ends.limit_of`)."""
    limit_s = now.terms.active_deadline_s
    if limit_s is None or not progress.launch_s:
        return None
    return progress.launch_s + max(0.0, limit_s - progress.served_s)


def with_stuck(progress: Progress, left: tuple[RankPod, ...], now_s: float, config: LifecycleConfig) -> Progress:
    """Add to the message a pod that should have ended long ago, and what keeps it. Ties: the first by name."""
    happened = progress.message.split(WAITS_FOR, 1)[0]
    stuck = min((pod for pod in left if _is_stuck(pod, now_s, config)), key=lambda pod: pod.name, default=None)
    if stuck is None:
        return replace(progress, message=happened)
    where = f" on {stuck.node}" if stuck.node else ""
    keeps = f"its finalizers {', '.join(stuck.finalizers)}" if stuck.finalizers else "its kubelet has not let it go"
    return replace(progress, message=f"{happened or 'ends'}{WAITS_FOR}pod {stuck.name}{where} to be gone: {keeps}")


def with_wake(step: Step, now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    """Add the next time at which the answer may change although nothing else does."""
    moments = _moments_of_pods(now, config) if step.progress.phase not in FINISHED or now.held else iter(())
    of_resize = () if step.wake_s is None else (step.wake_s,)
    again_s = _LOOK_AGAIN_S.get(now.untuned) if now.untuned and step.progress.phase is Phase.RUNNING else None
    unknown = () if again_s is None else (now_s + again_s,)
    all_moments = (*moments, *_moments_of_job(step.progress, now, config), *of_resize, *unknown)
    ahead = [moment_s for moment_s in all_moments if moment_s > now_s]
    return replace(step, wake_s=min(ahead, default=None))


def _is_stuck(pod: RankPod, now_s: float, config: LifecycleConfig) -> bool:
    return pod.terminating and now_s >= pod.gone_by_s + config.stuck_s


def _moments_of_pods(now: Situation, config: LifecycleConfig) -> Iterator[float]:
    for pod in now.pods:
        if pod.unschedulable_since_s is not None and not pod.node:
            yield pod.unschedulable_since_s + config.unschedulable_s
        if pod.node and pod.node in now.unready_since_s:
            yield now.unready_since_s[pod.node] + config.node_loss_s
        if pod.terminating:
            yield pod.gone_by_s + config.stuck_s
            yield pod.gone_by_s + config.overdue_s
        if pod.creating_since_s is not None:
            yield pod.creating_since_s + NOT_CREATED_S
        if pod.preparing_since_s is not None:
            yield pod.preparing_since_s + NOT_CREATED_S


def _moments_of_job(progress: Progress, now: Situation, config: LifecycleConfig) -> Iterator[float]:
    terms = now.terms
    if now.deleting:
        return
    if progress.phase in FINISHED:
        if (limit_s := kept_s(now, config)) is not None:
            yield progress.completion_s + limit_s
        return
    if progress.trial is not None and progress.is_tried and progress.phase is Phase.QUEUED:
        yield progress.trial.since_s + terms.trial.wait_s
    if (until_s := runs_until_s(now, progress)) is not None:
        yield until_s
    if progress.phase is Phase.RUNNING and now.untuned is not None:
        yield progress.start_s + NOT_TUNED_S
    if progress.phase in (Phase.LAUNCHED, Phase.STARTING) and (by_s := starts_by_s(now, progress)) < inf:
        yield by_s
    if progress.phase is Phase.QUEUED:
        yield from progress.avoid.values()
    if progress.phase in (Phase.QUEUED, Phase.LAUNCHED) and now.placement is not None:
        yield now.placement.bind_deadline_s + 0.001
