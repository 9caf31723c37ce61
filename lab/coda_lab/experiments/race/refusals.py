"""Pods that a kubelet refused because they no longer fitted on their node. Judges nothing."""

from __future__ import annotations

from collections import Counter
from typing import Final

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB

REASON: Final = "OutOf"
"""How a kubelet's reason begins: OutOfcpu, OutOfnvidia.com/gpu."""


class Refusals:
    """The refused pods' reasons, by `namespace/name`."""

    def __init__(self) -> None:
        self.of_gangs: dict[str, str] = {}
        self.of_foreign_pods: dict[str, str] = {}

    def on_pod(self, _old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        reason = None if new is None else refusal_of(new)
        if new is None or reason is None:
            return
        metadata = new["metadata"]
        is_rank = LABEL_JOB in (metadata.get("labels") or {})
        (self.of_gangs if is_rank else self.of_foreign_pods)[f"{metadata['namespace']}/{metadata['name']}"] = reason

    def had(self, pod: str) -> bool:
        """True when `namespace/name` was refused."""
        return pod in self.of_gangs or pod in self.of_foreign_pods

    def __len__(self) -> int:
        return len(self.of_gangs) + len(self.of_foreign_pods)

    def as_json(self) -> dict[str, dict[str, int]]:
        """The number of refused pods, by owner and the kubelet's reason."""
        return {
            "gangs": dict(sorted(Counter(self.of_gangs.values()).items())),
            "foreign": dict(sorted(Counter(self.of_foreign_pods.values()).items())),
        }


def refusal_of(pod: Json) -> str | None:
    """Why its kubelet refused it, or None."""
    status = pod.get("status") or {}
    reason = str(status.get("reason") or "")
    return reason if status.get("phase") == "Failed" and reason.startswith(REASON) else None
