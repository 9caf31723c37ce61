"""The JSON of Kubernetes' objects: names, quantities, and how objects are read into the model and written from it.

Nothing here talks to an API server or decides. Read `names`, `quantities`, `pod_requests`, `read`, `write`,
`tuning_status`. The face has the light names only: `read` and `write` import the model, which not every shell needs.
"""

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, GPU, KIND, SYSTEM_NAMESPACE, THROTTLING
from coda_kube.objects.quantities import (
    micro_time_from_seconds,
    milli_from_quantity,
    quantity_from_milli,
    seconds_from_time,
    time_from_seconds,
    whole_from_quantity,
)

__all__ = [
    "API_VERSION",
    "GPU",
    "KIND",
    "SYSTEM_NAMESPACE",
    "THROTTLING",
    "Json",
    "micro_time_from_seconds",
    "milli_from_quantity",
    "quantity_from_milli",
    "seconds_from_time",
    "time_from_seconds",
    "whole_from_quantity",
]
