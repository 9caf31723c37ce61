"""What came of a write to the API server."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from coda.model import JobId


class Written(Enum):
    """The outcome of a write."""

    DONE = "done"
    NEEDLESS = "needless"  # nothing to change any more
    STALE = "stale"  # the job is not as it was decided on; its change causes another cycle
    CONFLICT = "conflict"  # somebody wrote first, and the cache does not show it yet
    LAPSED = "lapsed"  # the Lease is not held any more
    REFUSED = "refused"  # the API server does not store it
    PROTECTED = "protected"  # a disruption budget refuses the eviction
    FAILED = "failed"  # the API server did not answer
    SLOW = "slow"  # there is no answer yet: it goes on by itself
    BUSY = "busy"  # an earlier write of the job is slow, or several of its namespace are, or the API server is too busy


Ended = Callable[[JobId, Written, str], None]
"""Told of the end of each write with `decided_on`, and why it did not work."""

Evicted = Callable[[JobId, str, Written, str], None]
"""Told of the end of each eviction of a CPU job, with the uid of its owner, and why it did not work."""
