"""Errors of ours that still leave something out: shown as a metric, and said again while they last.

They are found once, and what they leave out stays out for hours. Whoever looks then must find them in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coda.cycle import CycleResult
from coda.model.decision import Fault, WaitCode
from coda_extender.metrics import APART_KINDS, Metrics
from coda_kube.say_again import SAY_AGAIN_S

log = logging.getLogger(__name__)

_MOST: Final = 5  # faults that are said again, the newest


class StandingFaults:
    """What was left out of decisions for errors of ours. `clock`: seconds that only grow."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._found: list[Fault] = []  # since something is left out
        self._said_s = 0.0

    def note(self, result: CycleResult) -> None:
        """Take what a cycle says of it, and say what it has found."""
        apart = result.apart or Fault()
        for kind, names in zip(APART_KINDS, (apart.jobs, apart.nodes, apart.quotas), strict=True):
            self._metrics.set_apart.labels(kind).set(len(names))
        undecidable = result.jobs_by_code.get(WaitCode.UNDECIDABLE, 0)
        last = [still for fault in self._found if (still := _what_lasts(fault, apart, undecidable)) is not None]
        self._found = last or (self._found if undecidable else [])  # a job may be refused for what has no name
        for fault in result.decision.faults:
            self._metrics.errors.inc()
            log.error("the planner cannot judge %s, and goes on without: %s", _names(fault), fault.traceback)
            self._found = [*self._found, fault][-_MOST:]
            self._said_s = self._clock()

    def say_again(self) -> None:
        """Say what is still left out, if it was not said for long."""
        if self._found and self._clock() - self._said_s >= SAY_AGAIN_S:
            self._said_s = self._clock()
            for fault in self._found:
                log.error(
                    "the planner still leaves out what it could not judge, %s: %s", _names(fault), fault.traceback
                )

    def forget(self) -> None:
        """Another replica decides."""
        self._found.clear()
        for kind in APART_KINDS:
            self._metrics.set_apart.labels(kind).set(0)


def _what_lasts(fault: Fault, apart: Fault, undecidable: int) -> Fault | None:
    """Return the fault with the names that are still left out, or None. A refused job need not be set apart."""
    jobs = fault.jobs if undecidable else tuple(name for name in fault.jobs if name in apart.jobs)
    nodes = tuple(name for name in fault.nodes if name in apart.nodes)
    quotas = tuple(name for name in fault.quotas if name in apart.quotas)
    is_named = bool(fault.jobs or fault.nodes or fault.quotas)
    is_left = bool(jobs or nodes or quotas) if is_named else bool(undecidable or apart != Fault())
    return replace(fault, jobs=jobs, nodes=nodes, quotas=quotas) if is_left else None


def _names(fault: Fault) -> str:
    return ", ".join([*fault.jobs[:10], *fault.nodes[:10], *fault.quotas[:10]]) or "nothing that can be named"
