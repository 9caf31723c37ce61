"""kopf: it watches TrainingJobs, puts each changed one into the cluster view, and so wakes its work.

Nothing is read or decided here. Read `handlers`, then `runner`; `lean_kopf` is kopf with less memory.
"""

from coda_operator.feed.runner import feed

__all__ = ["feed"]
