"""What failures of different jobs have in common.

Values in, values out: nothing here reads an object or keeps anything between calls. Read `signatures` (when two
failures are the same), then `failed_jobs` (one user's jobs) and `suspect_nodes` (several users on one node).
"""

from __future__ import annotations

from coda.correlation.failed_jobs import Alike, FailedJob, Outcome, alike_among, is_stopped_by
from coda.correlation.signatures import signature_of
from coda.correlation.suspect_nodes import Cordon, NodeEvidence, NodeFailure, suspect_nodes

__all__ = [
    "Alike",
    "Cordon",
    "FailedJob",
    "NodeEvidence",
    "NodeFailure",
    "Outcome",
    "alike_among",
    "is_stopped_by",
    "signature_of",
    "suspect_nodes",
]
