"""How long capacity counts as taken although it looks free: after a bind that kube-scheduler may have forgotten, and
while the ranks of a gang end one after the other."""

from __future__ import annotations

from typing import Final

SPREAD_S: Final = 2.0
"""After it has listed again, kube-scheduler hears of all pods at once, in no order. It has heard of all by then."""

CALM_S: Final = 5.0
"""After an outage, all binds from that time have been seen by then. Our choice."""

LONGEST_S: Final = 60.0
"""kube-scheduler watches again after 30 s, which client-go at most doubles by chance."""

UNSEEN_S: Final = 1.0
"""kube-scheduler may ask about a pod before our watch shows it, by milliseconds. A pod that nobody shows is made up."""

SETTLE_S: Final = 2.0
"""This long after the first rank of a gang ended the others are waited for. A kubelet looks at its containers once a
second (`genericPlegRelistPeriod` in pkg/kubelet/kubelet.go, 1.36) and reports the end once the sandbox is gone."""


def is_bind_known(version: int, bound_s: float, *, proven_version: int, now_s: float) -> bool:
    """True if kube-scheduler knows of a bind at `version`: it showed that version, or had `LONGEST_S` to see it."""
    return version <= proven_version or bound_s + LONGEST_S <= now_s


def is_outage_over(outage_s: float, now_s: float, *, has_unknown_binds: bool) -> bool:
    """True if no bind from an outage at `outage_s` can be forgotten any more."""
    since_s = now_s - outage_s
    return since_s > LONGEST_S or (since_s > CALM_S and not has_unknown_binds)


def is_held_back(*, was_bound: bool, is_stopped: bool, live_ranks: int) -> bool:
    """True if the capacity of an attempt's first ended rank is held back until its `live_ranks` have ended as well.

    Not for an attempt that was ordered to stop: all its capacity has counted as free since the order."""
    return was_bound and not is_stopped and live_ranks > 0


def may_still_end(first_end_s: float, now_s: float, settle_s: float = SETTLE_S) -> bool:
    """True while the other ranks are waited for. A rank that ends later leaves its capacity at once."""
    return now_s < first_end_s + settle_s


LEAVES_WITHIN_S: Final = 120.0
"""A pod whose attempt was ordered to stop, and that is not being deleted after this time, is not counted on any more:
nobody carries the order out. Our choice: many times what an operator takes."""

LONGEST_GRACE_S: Final = 300.0
"""Longer grace periods are not waited for: their owner chooses them, and others would wait. Our choice."""

OVERDUE_S: Final = 60.0
"""A pod that should have gone this long ago is not expected to go any more. Our choice: a kubelet takes seconds."""


def is_leaving(
    now_s: float, *, ordered_s: float, deleted_s: float | None, grace_s: float, notice_s: float = 0.0
) -> bool:
    """True while a pod is expected to go whose attempt was ordered to stop. Times are of one local clock.

    `deleted_s`: since when it is seen being deleted; None: not yet. `notice_s`: what its job has to save and end."""
    if deleted_s is None:
        return now_s < ordered_s + notice_s + LEAVES_WITHIN_S
    return now_s < deleted_s + min(grace_s, LONGEST_GRACE_S) + OVERDUE_S


GIVEN_UP_S: Final = 5.0
"""A pinned pod that kube-scheduler has found no room for so long will not be bound: its node has less than was seen."""

LOOKED_ON_S: Final = 12.0
"""A new leader ends no pod before this. What it finds given up may be in kube-scheduler's back-off, which lasts 10 s at
most (`podMaxBackoffSeconds`), and be bound then."""

NODE_LOST_S: Final = 60.0
"""A node that takes no pods for so long is not waited for. Our choice: as long as a gang waits for a lost node."""


def is_stuck(now_s: float, *, led_s: float, given_up_s: float | None, blocked_s: float | None) -> bool:
    """True if a released pod can only start elsewhere, and so only as another pod: its pin is for good.

    `led_s`: since when this leader looks. `given_up_s`, `blocked_s`: since when it has seen that kube-scheduler has
    given the pod up, and that its node takes no pods; None: not so. A scheduler that is away makes no pod stuck."""
    if now_s < led_s + LOOKED_ON_S:
        return False
    is_given_up = given_up_s is not None and now_s >= given_up_s + GIVEN_UP_S
    return is_given_up or (blocked_s is not None and now_s >= blocked_s + NODE_LOST_S)
