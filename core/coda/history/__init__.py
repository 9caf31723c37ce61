"""What finished jobs teach: pure questions about the past. Nothing is stored or read here.

`record` is what is kept of a finished job, `time_spent` how its time went, `accounts` what its owner used. `run_times`
estimates how long jobs run, `ended_runs` follows those that a planner sees end, `queue_estimates` fixes it for those
that wait, and `run_groups` has it in few numbers.
"""

from __future__ import annotations

from coda.history.accounts import Account, accounts
from coda.history.record import Ending, FinishedJob, run_of
from coda.history.run_groups import RunGroup, learn_groups, run_groups
from coda.history.run_times import FinishedRun, RunEstimate, RunTimes

__all__ = [
    "Account",
    "Ending",
    "FinishedJob",
    "FinishedRun",
    "RunEstimate",
    "RunGroup",
    "RunTimes",
    "accounts",
    "learn_groups",
    "run_groups",
    "run_of",
]
