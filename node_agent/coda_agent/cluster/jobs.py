"""A TrainingJob as the tuning needs it: cores of its ranks, wishes, grants and resizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coda.allocator import Tuning
from coda.allocator.tuning import TuningInput
from coda.errors import InvalidInput
from coda.model import Phase
from coda_kube.objects.pods.trial_spec import runs_trial
from coda_kube.objects.read import AUTO
from coda_kube.objects.tuning_status import answer_from_json, resize_from_json, tuning_from_json, usual_cores

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedJob:
    """A running attempt whose core count Coda finds. `tuning` None: not begun, or of another attempt."""

    namespace: str
    name: str
    uid: str
    version: str  # the resourceVersion that was read
    tuning_input: TuningInput
    tuning: Tuning | None
    before: Tuning | None = None  # of another attempt: of the last one
    nodes: tuple[str, ...] = ()  # by rank
    fault: str = ""  # why the tuning in its status cannot be read; then a new one begins

    @property
    def id(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


def tuned_job_from_json(item: Item, most_cores: int) -> TunedJob | None:
    """Return the job if it runs with automatic cores, else None. `most_cores`: of this node, that pods can have.

    Raises for a broken object: InvalidInput, LookupError, TypeError, ValueError."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    placement = status.get("placement") or {}
    runs = status.get("phase") == Phase.RUNNING.value and not metadata.get("deletionTimestamp")
    if not runs or not placement or runs_trial(status):  # a trial is too short, and of another size
        return None
    is_on_seats = bool(placement.get("gpus"))  # its speed says nothing of its cores
    if is_on_seats or spec.get("cpusPerReplica") != AUTO or not spec.get("gpusPerReplica"):
        return None
    attempt = int(placement["attempt"])
    resize = resize_from_json(status)
    if resize is not None and resize.attempt != attempt:
        resize = None
    tuning_input = TuningInput(
        attempt=attempt,
        cores=int(status["request"]["cpusPerReplica"]) if resize is None else resize.cores,
        gpus=int(spec["gpusPerReplica"]),
        ranks=int(spec.get("replicas") or 1),
        most_cores=most_cores,
        answer=answer_from_json(placement),
        resize=resize,
        usual=usual_cores(spec, most_cores),
        served_s=float(status.get("servedSeconds") or 0),
    )
    tuning, fault = _tuning(status)
    return TunedJob(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        tuning_input=tuning_input,
        tuning=tuning if tuning is not None and tuning.attempt == attempt else None,
        before=tuning if tuning is not None and tuning.attempt != attempt else None,
        nodes=tuple(str(node) for node in placement.get("nodes") or ()),
        fault=fault,
    )


def _tuning(status: Item) -> tuple[Tuning | None, str]:
    try:
        return tuning_from_json(status), ""
    except InvalidInput as error:
        return None, str(error)
