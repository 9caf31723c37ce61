"""Trials on a cluster: whose jobs have one, and what their pod is like. What follows from one is the life cycle's.

Read `trial_pods` (the job as its trial sees it), then `tenants` (who asks for trials besides the jobs themselves).
"""

from __future__ import annotations

from coda_operator.trials.tenants import Trials
from coda_operator.trials.trial_pods import job_for

__all__ = ["Trials", "job_for"]
