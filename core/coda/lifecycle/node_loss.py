"""Which nodes count as lost, when nobody may say so, and whether a rank ended because of its node.

Each node is judged alone, unless many stop being Ready together: then it is more likely that something between the
nodes and the API server is broken, and the ranks still run. Source: Kubernetes stops its evictions in the same case
(`unhealthy-zone-threshold` of the node lifecycle controller). All times are the operator's own sight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from coda.lifecycle.state import LifecycleConfig, Progress, RankPod, Situation, is_away, is_lost, of_attempt
from coda.model.job import Phase

NODE_WORD_S: Final = 1.0
"""So much later than the end of a rank a reboot that ended it may be told: a node and its pods are watched each on its
own way. Our choice."""

NODE_NOT_READY = "NodeNotReady"
"""The reason of a gang that waits for a node which others would call lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """Whether node loss is suspended. `released_s`: no node counts as lost for a time before that."""

    since_s: float | None = None  # None: it is off
    begun_s: float = 0.0  # since when it has been on again and again
    needed_s: float = -math.inf  # when many nodes were last seen to be away together
    released_s: float = 0.0
    known: frozenset[str] = field(default_factory=frozenset)  # nodes that stayed away longer than the brake may last


def next_brake(
    before: Brake, unready_since_s: Mapping[str, float], nodes: int, now_s: float, config: LifecycleConfig
) -> Brake:
    """Return the brake after nodes came, went or changed. O(n log n) in unready nodes.

    `nodes` is how many count: those that have been Ready and still exist, and of these the unready ones are given. A
    node that was never Ready tells nothing about an outage, and an autoscaler may leave many.

    It is on while a large share of the nodes is not Ready and stopped being so within minutes of each other. Once the
    others are back, those that stay away are judged each alone, from then on. It ends in any case after a time: soon if
    most nodes are Ready, late if some are. Then so many nodes are really gone, and there is somewhere to go. Brakes
    that follow each other share that time: nodes that come and go must not put off the loss of others for ever."""
    known = frozenset([name for name in before.known if name in unready_since_s])
    unknown_s = (
        {name: at_s for name, at_s in unready_since_s.items() if name not in known} if known else unready_since_s
    )
    moments = sorted(unknown_s.values())
    counted = nodes - len(known)
    needed = max(config.brake_least_nodes, math.ceil(config.brake_share * counted))
    together = any(
        last - first <= config.brake_window_s for first, last in zip(moments, moments[needed - 1 :], strict=False)
    )
    released_s = before.released_s if before.since_s is None else now_s
    if not together:
        return replace(before, since_s=None, released_s=released_s, known=known)
    goes_on = before.since_s is not None or now_s - before.needed_s < config.brake_calm_s
    begun_s = before.begun_s if goes_on else now_s
    limit_s = config.brake_limit_s if len(moments) * 2 < counted else config.brake_longest_s
    if now_s - begun_s >= limit_s and len(moments) < counted:
        return Brake(begun_s=begun_s, needed_s=now_s, released_s=released_s, known=frozenset(unready_since_s))
    since_s = now_s if before.since_s is None else before.since_s
    return replace(before, since_s=since_s, begun_s=begun_s, needed_s=now_s, known=known)


def brake_moment(brake: Brake, config: LifecycleConfig) -> float | None:
    """Return when to judge the brake again although no node changes; None while it is off."""
    if brake.since_s is None:
        return None
    first_s = brake.begun_s + config.brake_limit_s
    if brake.needed_s < first_s:
        return first_s
    return max(brake.begun_s + config.brake_longest_s, brake.needed_s + config.brake_window_s)


def ended_with_its_node(pod: RankPod, now: Situation, config: LifecycleConfig) -> bool:
    """True if the rank was running when its node went away, and its end was told then or soon after the return.

    Kubelets report such ends in many ways, for example as the exit code of a container that a reboot ended. Boot ids
    tell of reboots: of those that are known, the present one is not that of the pod. They alone decide where nobody saw
    the node go, or the rank end. Else the order does: what failed before a reboot failed by itself."""
    boot = now.boots.get(pod.node or "", "")
    rebooted = bool(pod.boot) and bool(boot) and boot != pod.boot
    if pod.ended_s is None:
        return False
    outage = now.outages.get(pod.node or "")
    if outage is None or pod.started_s is None:
        return rebooted
    since_s, until_s = outage
    back_s = math.inf if until_s is None or rebooted else until_s + config.node_back_s  # nothing outlives a reboot
    ran = pod.started_s - config.order_s <= since_s or (rebooted and pod.started_s == pod.ended_s)
    return ran and since_s <= pod.ended_s + config.order_s and pod.ended_s <= back_s


def node_word_s(now: Situation, now_s: float) -> float:
    """Return in how many seconds the nodes of the ranks that ended have told of a reboot; 0 where none tells of any.

    At most `NODE_WORD_S`, also after the clock stepped back."""
    ends_s = [pod.ended_s for pod in of_attempt(now) if pod.ended_s is not None and pod.node in now.boots]
    return min(NODE_WORD_S, max(0.0, max(ends_s, default=-math.inf) + NODE_WORD_S - now_s))


def with_node_trouble(progress: Progress, now: Situation, now_s: float, config: LifecycleConfig) -> Progress:
    """Say which rank's node is not Ready although the attempt goes on; once it is back, that all run again."""
    away = [
        pod
        for pod in of_attempt(now)
        if is_away(pod.node or "", now, now_s, config) and not is_lost(pod.node or "", now, now_s, config)
    ]
    if away:
        pod = min(away, key=lambda pod: pod.rank)
        why = "many nodes stopped being Ready together" if now.braked else "spec.onNodeLoss is Wait"
        message = f"rank {pod.rank}: node {pod.node} is not Ready; the attempt goes on, because {why}"
        return replace(progress, reason=NODE_NOT_READY, message=message)
    if progress.phase is Phase.RUNNING and progress.reason == NODE_NOT_READY:
        return replace(progress, reason="Running", message=f"all {now.terms.replicas} ranks have started")
    return progress
