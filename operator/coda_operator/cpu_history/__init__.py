"""CPU jobs in the history: each pod that ended is counted once, without a finalizer on pods of other controllers.

Nothing about a live pod is decided or written here. Read `ended_pod` (a pod -> its record), `pod_watch` (which pods
have ended), `recorder` (writes them while this replica leads), then `keeper` (the wiring).
"""

from coda_operator.cpu_history.keeper import CpuHistory, Retention

__all__ = ["CpuHistory", "Retention"]
