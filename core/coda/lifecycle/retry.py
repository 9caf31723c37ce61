"""What follows a failed attempt: the next attempt after a back-off, or the end of the job."""

from __future__ import annotations

from dataclasses import replace

from coda.lifecycle.failures import Failure
from coda.lifecycle.state import LifecycleConfig, Situation, Step, deletable
from coda.lifecycle.transitions import finish
from coda.model.job import Phase


def roll_back(now: Situation, failure: Failure, now_s: float, config: LifecycleConfig) -> Step:
    """Count the failure; then begin the next attempt, or fail the job."""
    failures = now.progress.failures + (1 if failure.own else 0)
    disruptions = now.progress.disruptions + (0 if failure.own else 1)
    counted = replace(now.progress, failures=failures, disruptions=disruptions)
    if failure.own and failures > now.terms.retries:
        message = f"{failure.message}; all {failures} allowed attempts have failed"
        return finish(replace(now, progress=counted), now_s, Phase.FAILED, (failure.reason, message))
    if failure.own:
        first_s, limit_s, doublings = config.failure_backoff_s, config.failure_backoff_limit_s, failures - 1
    else:
        first_s, limit_s, doublings = config.disruption_backoff_s, config.disruption_backoff_limit_s, disruptions - 1
    avoid = dict(counted.avoid)
    if failure.node is not None:
        avoid[failure.node] = now_s + config.avoid_node_s
    progress = replace(
        counted,
        phase=Phase.RESTARTING,
        not_before_s=now_s + min(limit_s, first_s * 2.0 ** min(doublings, 30)),
        avoid=avoid,
        reason=failure.reason,
        message=f"attempt {now.progress.attempt}: {failure.message}",
    )
    return Step(progress=progress, delete=deletable(now.pods))
