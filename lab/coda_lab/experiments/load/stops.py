"""Orders to stop, how the stopped jobs answered, and whether the job for which each was given started.

No job stops in vain: the one that gets its room is placed soon, or its user has withdrawn it meanwhile. Fed with what
is seen; talks to nobody.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID

SOON_S: Final = 60.0
"""From the end of a stopped attempt to the start for which it stopped: a fault may last 15 s, and two may meet."""
_RELEASED: Final = "Released"
_IDLE: Final = ("Succeeded", "Failed", "Suspended")


@dataclass(slots=True, kw_only=True)
class Order:
    """One order. `freed_s`, `served_s`: None as long as not. `by`: the job that gets the room, or `<namespace>/*` for
    one of another namespace. Any of them that starts, or that is withdrawn while it waits, may be the one.
    """

    job: str
    attempt: int
    cause: str
    by: str
    freed_s: float | None = None
    served_s: float | None = None
    withdrawn: bool = False

    def is_for(self, job: str) -> bool:
        """True if this job may be the one that gets the room."""
        return job == self.by or self.by == f"{job.partition('/')[0]}/*"

    @property
    def waited_s(self) -> float | None:
        """From the free room to the start; None while one of them is to come."""
        return None if self.freed_s is None or self.served_s is None else max(0.0, self.served_s - self.freed_s)


class Stops:
    """Every order of a run."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self.orders: list[Order] = []
        self.answers: Counter[tuple[str, str]] = Counter()  # by cause and answer
        self._now = now
        self._open: list[Order] = []  # not served
        self._plan_by_job: dict[str, str] = {}  # the one that was released last

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        item = new if new is not None else old
        assert item is not None
        job = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        status: Json = ((new or {}).get("status")) or {}
        before: Json = ((old or {}).get("status")) or {}
        placement: Json = status.get("placement") or {}
        self._see_order(job, placement, before.get("placement") or {})
        last = status.get("lastStop") or {}
        if last and last.get("attempt") != (before.get("lastStop") or {}).get("attempt"):
            self.answers[str(last["cause"]), str(last["answer"])] += 1
        self._see_room(job, status, is_gone=new is None)
        plan = str(placement.get("planId") or "")
        if placement.get("state") == _RELEASED and not placement.get("stop") and self._plan_by_job.get(job) != plan:
            self._plan_by_job[job] = plan
            self._serve(job)
        if old is not None and _waits(old) and (new is None or _generation(new) != _generation(old)):
            for order in self._open:
                order.withdrawn |= order.is_for(job)

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`: CPU jobs, which have no other sign of their start."""
        if new is None or LABEL_JOB_UID in (new["metadata"].get("labels") or {}):
            return
        if new["spec"].get("nodeName") and not (old and old["spec"].get("nodeName")):
            self._serve(f"{new['metadata']['namespace']}/{new['metadata']['name']}")

    def problems(self) -> tuple[str, ...]:
        """A sentence for each order that was given in vain."""
        found = []
        for order in self.orders:
            if order.withdrawn or order.freed_s is None:
                continue
            waited_s = order.waited_s
            if waited_s is None or waited_s > SOON_S:
                late = (
                    f"{order.by} was {'never placed' if waited_s is None else f'placed {waited_s:.0f} s after its end'}"
                )
                found.append(f"attempt {order.attempt} of {order.job} was stopped ({order.cause}), but {late}")
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        waits = sorted(wait_s for order in self.orders if (wait_s := order.waited_s) is not None)
        return {
            "orders": dict(sorted(Counter(order.cause for order in self.orders).items())),
            "answers": {f"{cause} {answer}": count for (cause, answer), count in sorted(self.answers.items())},
            "withdrawn": sum(order.withdrawn for order in self.orders),
            "slowest_start_s": round(waits[-1], 1) if waits else None,
        }

    def _see_order(self, job: str, placement: Json, before: Json) -> None:
        stop = placement.get("stop")
        if not stop or before.get("stop"):
            return
        attempt = int(placement["attempt"])
        if any((order.job, order.attempt) == (job, attempt) for order in self._open):
            return  # a list after an outage
        order = Order(job=job, attempt=attempt, cause=stop["cause"], by=stop["by"])
        self.orders.append(order)
        self._open.append(order)

    def _see_room(self, job: str, status: Json, *, is_gone: bool) -> None:
        attempt = int(status.get("attempt") or 1)
        for order in [order for order in self._open if order.job == job and order.freed_s is None]:
            if is_gone or attempt > order.attempt or status.get("phase") in _IDLE:
                order.freed_s = self._now()
                self._close(order)

    def _serve(self, job: str) -> None:
        for order in [order for order in self._open if order.is_for(job) and order.served_s is None]:
            order.served_s = self._now()
            self._close(order)

    def _close(self, order: Order) -> None:
        if order.freed_s is not None and order.served_s is not None:
            self._open.remove(order)


def _generation(item: Json) -> int:
    """Changes with each edit: whoever suspends a job, or asks for less, no longer wants that room."""
    return int(item["metadata"].get("generation") or 0)


def _waits(item: Json) -> bool:
    status: Json = item.get("status") or {}
    return status.get("phase") == "Queued" and (status.get("placement") or {}).get("state") != _RELEASED
