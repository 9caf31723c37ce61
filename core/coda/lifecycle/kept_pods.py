"""Which pods are evidence, which are strays, which ranks need no pod any more, and when an attempt ended.

A pod of the current attempt is evidence of how its rank ended. Our finalizer holds it until that is written or no
longer matters, because drains, autoscalers and collectors of ended pods take pods away at any time.
"""

from __future__ import annotations

from dataclasses import replace

from coda.lifecycle.state import UNDER_WAY, PodState, Progress, RankPod, Situation, Step, deletable, is_rank, of_attempt
from coda.model.job import Phase

WITH_RANKS = frozenset({Phase.QUEUED, Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})


def with_succeeded(now: Situation) -> Situation:
    """Write down the ranks that have succeeded as soon as one of them loses its pod.

    While all of them have one, nothing is written: the pods say it."""
    if now.progress.phase not in WITH_RANKS:
        return now
    done = [pod for pod in of_attempt(now) if pod.state is PodState.SUCCEEDED]
    if not now.seen_succeeded - now.progress.succeeded and not any(pod.terminating for pod in done):
        return now
    succeeded = now.progress.succeeded | now.seen_succeeded | {pod.rank for pod in done}
    return replace(now, progress=replace(now.progress, succeeded=succeeded))


def success_of(now: Situation) -> str | None:
    """Return why the attempt has succeeded, or None."""
    succeeded = now.progress.succeeded | {pod.rank for pod in of_attempt(now) if pod.state is PodState.SUCCEEDED}
    if now.terms.rank_zero_decides and 0 in succeeded:
        return "rank 0 succeeded"
    return f"all {now.terms.replicas} ranks succeeded" if len(succeeded) == now.terms.replicas else None


def with_end(now: Situation, now_s: float) -> Situation:
    """Add when the attempt under way ended, if that was seen long after: as its pods say it.

    It ends with its success, else with the first rank that fails."""
    if now.progress.phase not in UNDER_WAY or now.ended_s or not now.progress.launch_s:
        return now
    pods = of_attempt(now)
    over_s = {pod.rank: pod.over_s for pod in pods if pod.state is PodState.SUCCEEDED}
    if now.terms.rank_zero_decides and 0 in over_s:
        ended_s = over_s[0]
    elif len(over_s) == now.terms.replicas:
        ended_s = max(over_s.values()) if all(over_s.values()) else 0.0
    else:
        ended_s = min((pod.over_s for pod in pods if pod.state is PodState.FAILED and pod.over_s), default=0.0)
    return replace(now, ended_s=min(now_s, max(ended_s, now.progress.launch_s))) if ended_s else now


def with_let_go(step: Step, now: Situation) -> Step:
    """Add the pods that are held and whose end is written down or no longer matters."""
    deleted = {pod.uid for pod in step.delete}
    let_go = [
        pod for pod in now.pods if pod.held and pod.uid not in deleted and not _is_evidence(pod, now, step.progress)
    ]
    return replace(step, let_go=tuple(let_go))


def _is_evidence(pod: RankPod, now: Situation, after: Progress) -> bool:
    if now.deleting or after.phase not in WITH_RANKS or pod.attempt != after.attempt:
        return False
    return is_rank(pod, now) and pod.rank not in after.succeeded


def strays(now: Situation) -> tuple[RankPod, ...]:
    """Return the pods that are no ranks of the attempt and are not being deleted yet, or for too long.

    An unbound pod is a rank only if it is pinned where the placement says: otherwise it would withhold another node's
    capacity."""
    return tuple(pod for pod in deletable(now.pods) if _is_stray(pod, now))


def _is_stray(pod: RankPod, now: Situation) -> bool:
    if pod.attempt != now.progress.attempt or not is_rank(pod, now):
        return True
    placement = now.placement
    if pod.node or placement is None or placement.attempt != pod.attempt or pod.rank >= len(placement.nodes):
        return False
    return pod.plan_id != placement.plan_id or pod.pinned_to != placement.nodes[pod.rank]
