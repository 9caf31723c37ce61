"""The trial of one job: which of its attempts it is, how long it may take, and what came of it.

A trial is an attempt like any other, of one rank with one GPU. A job has at most one trial that ran, before any gang.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

TRIAL_TAINT: Final = "coda.scheduler/trials"
"""By the platform, on nodes that it keeps for trials. They name it, and nobody else may: not even by tolerating all."""
RUN_S: Final = 300.0
"""Seconds that a trial runs at most. Our choice: half of Philly's failures show within two minutes (table 6)."""
WAIT_S: Final = 300.0
"""Seconds that it waits for its GPU, and then for its start, before the gang goes on without. Our choice: as long."""


class TrialOutcome(Enum):
    """What came of a trial; spelled as in the status and the history."""

    PASSED = "Passed"  # it reported its first step, or ended well
    TIME_OVER = "TimeOver"  # it ran for as long as it may: no error, and no step that was reported
    FAILED = "Failed"  # as the gang would have: the job has failed
    UNCLEAR = "Unclear"  # it failed or was ended, and its size or the cluster may be why
    SKIPPED = "Skipped"  # it did not start in time


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTerms:
    """How long a trial may take, in seconds. `wait_s`: for its GPU, and once more for its start."""

    run_s: float = RUN_S
    wait_s: float = WAIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """The trial of a job. `outcome` None: it waits or runs. Times are seconds since 1970, 0 for none."""

    attempt: int  # the attempt that is the trial
    since_s: float = 0.0  # since when it waits for its GPU
    outcome: TrialOutcome | None = None
    held_s: float = 0.0  # how long it had its GPU, in whole seconds
    message: str = ""  # why it came out so, in a clause

    @property
    def is_open(self) -> bool:
        """True while nothing came of it yet."""
        return self.outcome is None


def is_tried(trial: TrialRun | None, attempt: int) -> bool:
    """True if this attempt is the trial: one rank with one GPU, also while its pod is being deleted."""
    return trial is not None and trial.attempt == attempt


def next_trial(trial: TrialRun | None, attempt: int, now_s: float, *, is_asked: bool) -> TrialRun | None:
    """Return the trial of a job whose next attempt is `attempt`; None: it has none.

    Only a first attempt begins one: a job that ever held a gang is past it. A trial that never ran goes on as the next
    attempt, and waits since the same moment."""
    if trial is not None and not trial.is_open:
        return trial
    if not is_asked:
        return None
    if trial is None:
        return TrialRun(attempt=attempt, since_s=now_s) if attempt == 1 else None
    return replace(trial, attempt=attempt, since_s=trial.since_s or now_s)
