"""Signs that the system makes progress: bound pods of gangs, the operator's writes, new holders of the Leases.

They are read directly from the API server, past every gate, and reported to everybody who waits for one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID, SYSTEM_NAMESPACE
from coda_kube.objects.quantities import seconds_from_time

LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
_PLANNERS: Final = ("placement", "pending")  # the status fields that are not the operator's


class What(Enum):
    """The kind of a sign."""

    BOUND = "a pod of a gang was bound"
    WROTE = "the operator wrote a status"
    HOLDER = "a Lease has a new holder"
    RENEWED = "the holder of a Lease renewed it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A sign seen at `seen_s` (seconds since 1970). `happened_s`: the object's own whole-second time, if it has one."""

    what: What
    seen_s: float
    happened_s: float
    subject: str  # pod, job or Lease

    def is_after(self, moment_s: float) -> bool:
        """True if it happened after `moment_s`, as far as whole seconds tell."""
        return self.seen_s >= moment_s and self.happened_s >= math.floor(moment_s)


class Signs:
    """Turns the changes of the watches into signs. One loop owns it."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self.holder_by_lease: dict[str, str] = {}
        self._now = now
        self._last: dict[What, Sign] = {}
        self._waiters: dict[asyncio.Future[Sign], Callable[[Sign], bool]] = {}

    async def next(self, wanted: Callable[[Sign], bool]) -> Sign:
        """Return the next sign that is wanted."""
        waiter: asyncio.Future[Sign] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = wanted
        try:
            return await waiter
        finally:
            self._waiters.pop(waiter, None)

    async def next_after(self, what: What, moment_s: float) -> Sign:
        """Return the first one of its kind from now on that happened after `moment_s`; the last one seen counts too."""
        last = self._last.get(what)
        if last is not None and last.is_after(moment_s):
            return last
        return await self.next(lambda sign: sign.what is what and sign.is_after(moment_s))

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        if new is None or LABEL_JOB_UID not in new["metadata"].get("labels", {}):
            return
        if new["spec"].get("nodeName") and not (old and old["spec"].get("nodeName")):
            self._tell(What.BOUND, new["metadata"]["name"], _bound_s(new))

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        if old is not None and new is not None and _operators(old) != _operators(new):
            self._tell(What.WROTE, new["metadata"]["name"])

    def on_lease(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        if new is None:
            return
        name, holder = new["metadata"]["name"], new["spec"].get("holderIdentity") or ""
        if holder and holder != self.holder_by_lease.get(name):
            self.holder_by_lease[name] = holder
            self._tell(What.HOLDER, name)
        elif holder and old is not None and old["spec"].get("renewTime") != new["spec"].get("renewTime"):
            self._tell(What.RENEWED, name)

    def _tell(self, what: What, subject: str, happened_s: float | None = None) -> None:
        now_s = self._now()
        sign = Sign(what=what, seen_s=now_s, happened_s=now_s if happened_s is None else happened_s, subject=subject)
        self._last[what] = sign
        for waiter, wanted in list(self._waiters.items()):
            if not waiter.done() and wanted(sign):
                waiter.set_result(sign)


def _bound_s(pod: Json) -> float | None:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return seconds_from_time(condition.get("lastTransitionTime"))
    return None


def _operators(job: Json) -> Json:
    return {field: value for field, value in (job.get("status") or {}).items() if field not in _PLANNERS}
