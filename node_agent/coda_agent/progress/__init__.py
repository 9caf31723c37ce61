"""How far this node's jobs are, by their own word: files in, `status.progress` out. What is believed: `coda.progress`.

Read `report_file` (one file of a pod, which may be anything), then `follower` (when which is read, and written)."""

from coda_agent.progress.follower import ProgressFollower
from coda_agent.progress.report_file import FoundReport, find_report

__all__ = [
    "FoundReport",
    "ProgressFollower",
    "find_report",
]
