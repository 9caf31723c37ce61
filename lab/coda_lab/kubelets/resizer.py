"""Advances the resizes of all machines when a pod, a node or the time changes. The rules are in `resize_rules`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from coda.errors import InvalidInput
from coda_lab.kubelets.machine import Machine, SimPod, Stage
from coda_lab.kubelets.resize_rules import RETRY_S, allocate, apply, judge
from coda_lab.kubelets.resize_values import Manner, News, manners_from_node, sizes_from_json

log = logging.getLogger(__name__)

Json = Mapping[str, Any]


class Resizer:
    """`arm` sets a pod's timer again, `report` has its state written."""

    def __init__(
        self, *, now: Callable[[], float], arm: Callable[[SimPod], None], report: Callable[[SimPod], None]
    ) -> None:
        self._now = now
        self._arm = arm
        self._report = report

    def node_seen(self, machine: Machine, item: Json) -> None:
        """A node's annotations may have changed how it treats resizes."""
        try:
            manners = manners_from_node(item)
        except InvalidInput as error:
            log.error("%s: %s; it goes on as before", machine.name, error)
            return
        if manners != machine.manners:
            machine.manners = manners
            for pod in list(machine.pods.values()):
                self.attend(pod)

    def edited(self, pod: SimPod, item: Json) -> None:
        """The spec changed; in a running pod only the sizes of its containers can change."""
        pod.asked_generation = item["metadata"]["generation"]
        wanted = sizes_from_json(item["spec"])
        if wanted == pod.wanted:
            if _hears(pod) and "deletionTimestamp" not in item["metadata"]:
                pod.generation = pod.asked_generation  # something else changed, which needs no action
                self._say(pod, pod.news, is_new=True)
            return
        pod.wanted, pod.was_resized = wanted, True
        if _hears(pod):
            self._look(pod, is_new=True)

    def attend(self, pod: SimPod) -> None:
        """Continue with an unfinished resize, if nothing is under way."""
        if pod.wanted != pod.actual and pod.resize_due_s is None and _hears(pod):
            self._look(pod)

    def due(self, pod: SimPod) -> None:
        """Apply the allocated sizes now, or fail."""
        pod.resize_due_s = None
        if pod.machine.silent:
            return
        if pod.machine.manners.manner is Manner.FAILS:
            pod.resize_due_s = self._now() + RETRY_S
            message = "failed to set the cgroup of a container (asked for by annotation)"
            self._say(pod, replace(pod.news, failed=True, message=message))
        else:
            apply(pod)
            message = pod.news.message if pod.news.pending else ""
            self._say(pod, replace(pod.news, under_way=False, failed=False, message=message))
        self._arm(pod)

    def release(self, pod: SimPod) -> None:
        """The pod holds nothing any more: others may use its capacity."""
        pod.machine.ledger.release(pod.uid)
        pod.machine.waiting.pop(pod.uid, None)
        pod.resize_due_s = None
        self._try_waiting(pod.machine)

    def _look(self, pod: SimPod, *, is_new: bool = False) -> None:
        news = judge(pod)
        if news is None:
            return
        pod.generation = pod.asked_generation
        is_allocated = news.under_way
        if is_allocated:
            allocate(pod)
            pod.resize_due_s = self._now() + pod.machine.manners.takes_s
        elif pod.allocated != pod.actual:  # an earlier wanted size is being applied
            news = replace(news, under_way=True)
            pod.resize_due_s = pod.resize_due_s or self._now() + pod.machine.manners.takes_s
        pod.machine.waiting.pop(pod.uid, None)
        if news.pending is not None:
            pod.machine.waiting[pod.uid] = pod
        self._say(pod, news, is_new=is_new)
        self._arm(pod)
        if is_allocated:
            self._try_waiting(pod.machine)

    def _try_waiting(self, machine: Machine) -> None:
        for pod in list(machine.waiting.values()):
            if pod.uid in machine.waiting and _hears(pod):
                self._look(pod)

    def _say(self, pod: SimPod, news: News, *, is_new: bool = False) -> None:
        if news != pod.news or is_new:
            pod.news = news
            pod.revision += 1
            self._report(pod)


def _hears(pod: SimPod) -> bool:
    return pod.stage is Stage.RUNNING and not pod.machine.silent and not pod.removal_due
