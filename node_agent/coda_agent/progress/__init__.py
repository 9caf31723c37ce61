"""What this node's jobs say by files, and what they are told by one. What is believed: `coda.progress`.

Read `report_file` (one file of a pod, which may be anything), then `follower` (when which is read, and written to
`status.progress`); `stop_file` and `stop_teller` do the same in the other direction.
"""

from coda_agent.progress.follower import ProgressFollower
from coda_agent.progress.report_file import FoundReport, find_report
from coda_agent.progress.stop_file import tell_stop
from coda_agent.progress.stop_teller import StopTeller

__all__ = [
    "FoundReport",
    "ProgressFollower",
    "StopTeller",
    "find_report",
    "tell_stop",
]
