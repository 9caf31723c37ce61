"""What follows a failed attempt: the next attempt after a back-off, or the end of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda.lifecycle.failures import Failure
from coda.lifecycle.state import LifecycleConfig, Situation, Step, deletable
from coda.lifecycle.transitions import finish
from coda.model.job import Phase

TOLD_S: Final = 30.0
"""A longer back-off is named in the message. Our choice."""
MESSAGE_ROOM: Final = 880  # characters, so that the time of the next try is not cut off


def roll_back(now: Situation, failure: Failure, now_s: float, config: LifecycleConfig) -> Step:
    """Count the failure; then begin the next attempt, or fail the job."""
    failures = now.progress.failures + (1 if failure.own else 0)
    disruptions = now.progress.disruptions + (0 if failure.own else 1)
    in_a_row = 0 if failure.own else _in_a_row(now, now_s, config)
    counted = replace(now.progress, failures=failures, disruptions=disruptions, in_a_row=in_a_row)
    if failure.own and failures > now.terms.retries:
        message = f"{failure.message}; all {failures} allowed attempts have failed"
        return finish(replace(now, progress=counted), now_s, Phase.FAILED, (failure.reason, message))
    if failure.own:
        first_s, limit_s, doublings = config.failure_backoff_s, config.failure_backoff_limit_s, failures - 1
    else:
        first_s, limit_s, doublings = config.disruption_backoff_s, config.disruption_backoff_limit_s, in_a_row - 1
    not_before_s = now_s + min(limit_s, first_s * 2.0 ** min(doublings, 30))
    avoid = dict(counted.avoid) | dict.fromkeys(failure.nodes, not_before_s + config.avoid_node_s)
    message = f"attempt {now.progress.attempt}: {failure.message}"
    if not failure.own and (wait_s := not_before_s - now_s) > TOLD_S:
        message = (
            f"{message[:MESSAGE_ROOM]}; {in_a_row} attempts in a row ended so; the next is tried {wait_s:.0f} s later"
        )
    progress = replace(
        counted,
        phase=Phase.RESTARTING,
        not_before_s=not_before_s,
        avoid=avoid,
        reason=failure.reason,
        message=message,
    )
    return Step(progress=progress, delete=deletable(now.pods))


def _in_a_row(now: Situation, now_s: float, config: LifecycleConfig) -> int:
    """Return how many attempts in a row were ended from outside, this one included. One that ran for long ends a row.

    What refuses a gang once will often refuse it again, and each try withholds capacity from others."""
    progress = now.progress
    ran_long = progress.phase is Phase.RUNNING and now_s - progress.launch_s >= config.calm_s
    return 1 if ran_long else progress.in_a_row + 1
