"""What finished jobs teach: pure questions about the past. Nothing is stored or read here.

`record` is what is kept of a finished job, `time_spent` how its time went, `accounts` what its owner used. `run_times`
estimates how long a running job goes on; `run_groups` are the same run times in few numbers.
"""

from __future__ import annotations

from coda.history.accounts import Account, accounts
from coda.history.record import Ending, FinishedJob, run_of
from coda.history.run_groups import RunGroup, run_groups, runs_from_groups
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
    "run_groups",
    "run_of",
    "runs_from_groups",
]
