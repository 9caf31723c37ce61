"""Events that the extender posts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import EXTENDER
from coda_kube.objects.quantities import micro_time_from_seconds


def event_about(about: Mapping[str, Any], now_s: float, reason: str, message: str, *, is_warning: bool = False) -> Json:
    """Return an Event. `about`: apiVersion and kind of the object, and its metadata."""
    namespace, name = about["namespace"], about["name"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{name}.{int(now_s * 1e6):x}"},
        "involvedObject": {key: about[key] for key in ("apiVersion", "kind", "namespace", "name", "uid")},
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": message,
        "action": "Plan",
        "eventTime": micro_time_from_seconds(now_s),
        "reportingComponent": EXTENDER,
        "reportingInstance": EXTENDER,
    }
