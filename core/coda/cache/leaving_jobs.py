"""Jobs that were stopped and still run: they hold nothing for long, and count in the shares until they are gone.

Else whoever deletes a pod could start another one beside it, and again, as long as the first takes to end.
"""

from __future__ import annotations

from coda.cache.tenants import Tenants
from coda.cache.usage import Usage
from coda.model.job import Job, JobId
from coda.nodes.free_capacity import FreeCapacity

_Charge = tuple[Usage | Tenants, Job, tuple[str, ...]]


class LeavingJobs:
    """Call `discharge` before the shares change, and `charge` afterwards. Each is O(ranks that leave)."""

    def __init__(self) -> None:
        self._leaving: dict[JobId, tuple[Job, tuple[str, ...]]] = {}
        self._charges: list[_Charge] = []

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """It was stopped, and a rank of it still runs on each of these nodes."""
        self._leaving[job.id] = (job, nodes)

    def remove(self, job: JobId) -> None:
        """It is gone, or it is another version."""
        self._leaving.pop(job, None)

    def charge(self, capacity: FreeCapacity, usage: Usage | None, tenants: Tenants | None) -> None:
        """Count them, but for nodes that take no pods: what was lost or is drained may be made again at once."""
        for job, names in self._leaving.values():
            counted = tuple([name for name in names if _takes_pods(capacity, name)])
            for shares in (usage, tenants):
                if shares is not None:
                    shares.add(job, counted)
                    self._charges.append((shares, job, counted))

    def discharge(self) -> None:
        """Undo the last `charge`."""
        for shares, job, counted in self._charges:
            shares.remove(job, counted)
        self._charges = []


def _takes_pods(capacity: FreeCapacity, name: str) -> bool:
    number = capacity.number_by_name.get(name)
    return number is not None and capacity.nodes[number].schedulable
