"""The tuning of this node's jobs: GPU samples in, `status.tuning` out. The search itself is `coda.allocator`.

Read `windows` (one measurement at a fixed core count), then `tuner` (one step per round)."""

from coda_agent.tuning.tuner import Tuner

__all__ = [
    "Tuner",
]
