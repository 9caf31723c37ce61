"""How many cores a rank may have for each of its GPUs. Quotas of GPUs do not count cores: without a limit, jobs of few
GPUs could take all cores of a node, and nobody else could use the rest of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coda.allocator.resize import RankSize
from coda.wording import counted
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.pod_requests import resources_from_quantities
from coda_operator.view import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresLimit:
    """The platform's limit. `per_gpu`: cores of a whole rank, with its sidecars; 0: there is none.

    Ranks without GPUs have none either: their cores count for their tenant."""

    per_gpu: float = 0.0

    def ceiling(self, gpus: int, cores: int) -> int:
        """Return the most cores that Coda may find for a rank, at most `cores`; one at least."""
        return cores if not self.per_gpu or not gpus else max(1, min(cores, int(self.per_gpu * gpus)))

    def excess(self, job: Json, request: Json) -> int:
        """Return how many whole cores a rank of the job asks for beyond the limit; 0: none."""
        return max(0, -(-self._excess_m(job, request) // 1000))

    def sentence(self, job: Json, request: Json) -> str:
        """Say what is too much, and what to do."""
        gpus, cores = (
            job["spec"]["gpusPerReplica"],
            resources_from_quantities(request["resources"], pods=1).cpu_m / 1000,
        )
        most = self.per_gpu * gpus
        return (
            f"each rank asks for {cores:g} cores and {counted(gpus, 'GPU')}, and this platform allows "
            f"{self.per_gpu:g} cores per GPU: ask for at most {most:g} cores per rank, sidecars included "
            "(spec.cpusPerReplica), or for more GPUs"
        )

    def refuses(self, job: JobRecord, changes: Iterable[tuple[RankSize, int]]) -> Rejected | None:
        """Return why ranks do not get these cores: one of them would grow beyond the limit. None: they may."""
        request = job.request
        if not self.per_gpu or request is None:
            return None
        grown = max((cores_m for size, cores_m in changes if cores_m > size.wanted_m), default=0)
        if not grown or self._excess_m(job.json, request) + grown - 1000 * int(request["cpusPerReplica"]) <= 0:
            return None
        return Rejected(403, "Forbidden", f"this platform allows {self.per_gpu:g} cores per GPU")

    def _excess_m(self, job: Json, request: Json) -> int:
        gpus = int(job["spec"]["gpusPerReplica"])
        if not self.per_gpu or not gpus:
            return 0
        return resources_from_quantities(request["resources"], pods=1).cpu_m - int(1000 * self.per_gpu * gpus)


def kept_cores(before: Json, after: Json) -> int:
    """Return how many cores the main container keeps of an accepted request, `before`; 0 if a rank asks for more.

    A template may be edited at any time, so sidecars count for themselves. The main container's cores count by
    GPU: the request before may be that of a trial."""
    (gpus_before, cores_before, rest_before_m), (gpus, _, rest_m) = _parts(before), _parts(after)
    is_as_wide = 1 <= gpus_before <= gpus
    return cores_before * gpus // gpus_before if is_as_wide and rest_m <= rest_before_m else 0


def _parts(request: Json) -> tuple[int, int, int]:
    """Return the GPUs of a rank, the cores of its main container, and the millicores of the others."""
    cores = int(request["cpusPerReplica"])
    asked = resources_from_quantities(request["resources"], pods=1)
    return asked.gpus, cores, asked.cpu_m - 1000 * cores


NO_LIMIT = CoresLimit()
