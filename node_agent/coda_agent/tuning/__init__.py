"""The tuning of this node's jobs: GPU samples in, `status.tuning` out. The search itself is `coda.allocator`.

Read `observation` (one window of one rank), `rank_windows` (of ranks that another agent tunes, and their reports),
`gang` (the reports of the other ranks), `windows` (one measurement of a job at a fixed core count), then `tuner` (one
step per round)."""

from coda_agent.tuning.tuner import Tuner

__all__ = [
    "Tuner",
]
