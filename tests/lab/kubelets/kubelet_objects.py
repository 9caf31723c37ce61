"""Pods and nodes as the API server shows them, and a rig that plays time: small worlds for the kubelets' tests."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coda_lab.kubelets.admission import Ledger
from coda_lab.kubelets.behaviour import PREFIX
from coda_lab.kubelets.fleet import LOST, Fleet
from coda_lab.kubelets.machine import Machine, SimPod

Json = dict[str, Any]

T0 = 1_000_000.0
ALLOCATABLE = {"cpu": 8000, "memory": 64 << 30, "nvidia.com/gpu": 8, "pods": 110}


def pod_json(
    name: str,
    *,
    node: str = "n0",
    uid: str = "",
    created: str = "2026-01-01T00:00:00Z",
    labels: dict[str, str] | None = None,
    status: Json | None = None,
    spec: Json | None = None,
    deleted_with_grace_s: int | None = None,
    requests: dict[str, str] | None = None,
    **annotations: str,
) -> Json:
    """A bound pod; annotations by their short names with '_' for '-'."""
    metadata: Json = {
        "name": name,
        "namespace": "ns",
        "uid": uid or f"uid-{name}",
        "creationTimestamp": created,
        "labels": labels or {},
        "annotations": {PREFIX + key.replace("_", "-"): text for key, text in annotations.items()},
    }
    if deleted_with_grace_s is not None:
        metadata |= {"deletionTimestamp": created, "deletionGracePeriodSeconds": deleted_with_grace_s}
    main = {"name": "main", "image": "train:1", "resources": {"requests": requests or {}}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [main]} | (spec or {}),
        "status": status or {"phase": "Pending"},
    }


def node_object(name: str, *, lost: bool | str = False, ready: str = "True") -> Json:
    """A Node with nothing but what the fleet looks at."""
    return {
        "metadata": {"name": name, "annotations": {LOST: "true" if lost is True else lost} if lost else {}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@dataclass(order=True)
class _Timer:
    due_s: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Rig:
    """A fleet whose clock is ours; `told` is every report's pod and stage, in order."""

    def __init__(self, *names: str, allocatable: dict[str, int] | None = None) -> None:
        self.now_s = T0
        self.told: list[tuple[str, str]] = []
        self.returned: list[str] = []
        self.asked: list[str] = []  # pods whose placement is asked for
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()
        self.fleet = Fleet(
            [
                Machine(name=name, index=index, ledger=Ledger(allocatable or ALLOCATABLE))
                for index, name in enumerate(names or ("n0",))
            ],
            now=lambda: self.now_s,
            later=self._later,
            report=lambda pod: self.told.append((pod.name, pod.stage.name)),
            returned=lambda machine: self.returned.append(machine.name),
            ask_placed=lambda pod: self.asked.append(pod.name),
        )

    def _later(self, delay_s: float, call: Callable[[SimPod], None], pod: SimPod) -> _Timer:
        timer = _Timer(self.now_s + delay_s, next(self._numbers), lambda: call(pod))
        heapq.heappush(self._timers, timer)
        return timer

    def run_to(self, since_start_s: float) -> None:
        """Let time pass until so many seconds after the start."""
        end_s = T0 + since_start_s
        while self._timers and self._timers[0].due_s <= end_s:
            timer = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, timer.due_s)
            if not timer.cancelled:
                timer.call()
        self.now_s = end_s

    def pod(self, name: str) -> SimPod:
        """The pod of that name, which must exist."""
        pod = self.fleet.pod("ns", name)
        assert pod is not None
        return pod
