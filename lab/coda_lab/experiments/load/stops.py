"""Orders to stop, how the stopped jobs answered, and whether the job for which each was given started.

No job stops in vain: the one that gets its room is placed soon, or its user has withdrawn it meanwhile. One that had
its place already gets more cores or has all of its pods soon, or ends first. Fed with what is seen; talks to nobody.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID

SOON_S: Final = 60.0
"""From the end of a stopped attempt to the start for which it stopped: a fault may last 15 s, and two may meet."""
_RELEASED: Final = "Released"
_PLACED: Final = ("Launched", "Starting", "Running")
_IDLE: Final = ("Succeeded", "Failed", "Suspended")


@dataclass(slots=True, kw_only=True)
class Order:
    """One order. `freed_s`, `served_s`: None as long as not. `by`: the job that gets the room, or `<namespace>/*` for
    one of another namespace. Any of them that starts, or that is withdrawn while it waits, may be the one. `grows`: it
    had its place when the order was seen.
    """

    job: str
    attempt: int
    cause: str
    by: str
    grows: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What a job has. `cores`: of each rank; 0: they are being changed. `wishes`: it has asked for others."""

    attempt: int
    runs: bool
    cores: int
    wishes: bool


class Stops:
    """Every order of a run."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self.orders: list[Order] = []
        self.answers: Counter[tuple[str, str]] = Counter()  # by cause and answer
        self._now = now
        self._open: list[Order] = []  # not served
        self._plan_by_job: dict[str, str] = {}  # the one that was released last
        self._places: dict[str, _Place] = {}  # by job

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
        self._see_growth(job, status)
        plan = str(placement.get("planId") or "")
        if placement.get("state") == _RELEASED and not placement.get("stop") and self._plan_by_job.get(job) != plan:
            self._plan_by_job[job] = plan
            self._serve(job)
        if old is not None and _waits(old) and (new is None or _generation(new) != _generation(old)):
            for order in self._open:
                order.withdrawn |= order.is_for(job) and not order.grows

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
                served = "given more cores" if order.grows else "placed"
                when = f"never {served}" if waited_s is None else f"{served} {waited_s:.0f} s after its end"
                late = f"{order.by} was {when}"
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
        grows = stop["by"] in self._places
        order = Order(job=job, attempt=attempt, cause=stop["cause"], by=stop["by"], grows=grows)
        self.orders.append(order)
        self._open.append(order)

    def _see_room(self, job: str, status: Json, *, is_gone: bool) -> None:
        attempt = int(status.get("attempt") or 1)
        for order in [order for order in self._open if order.job == job and order.freed_s is None]:
            if is_gone or attempt > order.attempt or status.get("phase") in _IDLE:
                order.freed_s = self._now()
                self._close(order)

    def _see_growth(self, job: str, status: Json) -> None:
        """Of one that has a place: all of its pods run, or it has more cores; or it gives its place up."""
        before, now = self._places.pop(job, None), _place(status)
        if now is not None:
            self._places[job] = now = now if now.cores or before is None else replace(now, cores=before.cores)
        if before is None:
            return
        ended = now is None or now.attempt != before.attempt
        served = not ended and now is not None and (now.runs > before.runs or now.cores > before.cores)
        for order in [order for order in self._open if order.is_for(job) and (order.grows or order.by != job)]:
            in_time = order.freed_s is None or self._now() - order.freed_s <= SOON_S
            order.withdrawn |= ended and in_time and (order.grows or before.wishes)
            if served and order.served_s is None:
                order.served_s = self._now()
                self._close(order)

    def _serve(self, job: str) -> None:
        for order in [order for order in self._open if order.is_for(job) and order.served_s is None]:
            order.served_s = self._now()
            self._close(order)

    def _close(self, order: Order) -> None:
        if order.freed_s is not None and order.served_s is not None:
            self._open.remove(order)


def _place(status: Json) -> _Place | None:
    placement: Json = status.get("placement") or {}
    resize: Json = status.get("resize") or {}
    if placement.get("state") != _RELEASED or placement.get("stop") or status.get("phase") not in _PLACED:
        return None
    cores = int(placement.get("cpusPerReplica") or 1)
    if resize and resize.get("attempt") == status.get("attempt"):
        cores = int(resize["coresPerReplica"]) if resize["state"] == "Done" else 0
    wishes = (status.get("tuning") or {}).get("phase") == "Wishing"
    return _Place(
        attempt=int(status.get("attempt") or 1), runs=status["phase"] == "Running", cores=cores, wishes=wishes
    )


def _generation(item: Json) -> int:
    """Changes with each edit: whoever suspends a job, or asks for less, no longer wants that room."""
    return int(item["metadata"].get("generation") or 0)


def _waits(item: Json) -> bool:
    status: Json = item.get("status") or {}
    return status.get("phase") == "Queued" and (status.get("placement") or {}).get("state") != _RELEASED
