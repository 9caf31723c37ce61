"""How far a training job is, by its own word: what is believed of it, when it ends, and whether it still learns.

Nothing here opens a file. What a job says decides about no other job, but for who is stopped (`lost_work`). Read
`job_report` (what one file says), `training_progress` (what is known after it), `pace` (when it ends), then
`early_stop`, and `stall` (whether it gets further from failure to failure).
"""

from __future__ import annotations

from coda.progress.early_stop import StopRule, convergence_text
from coda.progress.job_report import JobReport, report_from_bytes
from coda.progress.pace import Pace, pace_after, seconds_left
from coda.progress.training_progress import Plateau, TrainingProgress, progress_after

__all__ = [
    "JobReport",
    "Pace",
    "Plateau",
    "StopRule",
    "TrainingProgress",
    "convergence_text",
    "pace_after",
    "progress_after",
    "report_from_bytes",
    "seconds_left",
]
