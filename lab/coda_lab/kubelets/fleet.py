"""All kubelets of this process: what each does when a pod or node changes and when time passes.

Synchronous and without a clock: `now` and `later` are given, and news goes to `report`, so a test plays hours in
microseconds. A silent machine hears and says nothing. Its containers continue and end unseen. When it returns it does
what was asked of it meanwhile, in order of arrival.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coda_kube.objects.pods.stops import ANNOTATION_STOP
from coda_kube.objects.quantities import whole_from_quantity
from coda_lab.kubelets.behaviour import PREFIX
from coda_lab.kubelets.machine import OVER, Machine, SimPod, Stage, Timer
from coda_lab.kubelets.nodes import is_ready
from coda_lab.kubelets.pods.reader import arrival_order, pod_from_json
from coda_lab.kubelets.resizer import Resizer

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
LOST = PREFIX + "lost"
"""Annotation on a node: "true" silences its kubelet, "reboot" ends its containers too, as a machine that restarts."""

_QUICK_S = 0.02  # a state that lasts no longer is not worth a write: saves a third of all writes
_KILLED_BY_TERM = 143
_KILLED_AFTER_GRACE = 137
_OUT_OF_MEMORY = "OOMKilled"
_LOST_TASK = 255  # containerd's words for a container that it does not find again after a reboot: 255, Unknown
_REBOOT = "reboot"


def is_lost(node: Json) -> bool:
    """True when the node's annotation says that its kubelet is cut off."""
    return _loss(node) in ("true", _REBOOT)


def _loss(node: Json) -> str | None:
    found: str | None = (node["metadata"].get("annotations") or {}).get(LOST)
    return found


class Fleet:
    """The machines by name and the pods on them. `returned` is called with each machine that is heard again,
    `ask_placed` with each pod that must be told, through `placed`, when its gang was placed. A CPU job's pod says so.
    """

    def __init__(
        self,
        machines: Iterable[Machine],
        *,
        now: Callable[[], float],
        later: Callable[[float, Callable[[SimPod], None], SimPod], Timer],
        report: Callable[[SimPod], None],
        returned: Callable[[Machine], None] = lambda machine: None,
        ask_placed: Callable[[SimPod], None] = lambda pod: None,
    ) -> None:
        self.machines = {machine.name: machine for machine in machines}
        self._pod_by_uid: dict[str, SimPod] = {}
        self._pod_by_key: dict[str, SimPod] = {}
        self._now = now
        self._later = later
        self._report = report
        self.returned = returned
        self.ask_placed = ask_placed
        self._resizer = Resizer(now=now, arm=self._arm, report=report)

    def pod(self, namespace: str, name: str) -> SimPod | None:
        """The newest pod of that name on one of the machines."""
        return self._pod_by_key.get(f"{namespace}/{name}")

    def placed(self, pod: SimPod, placed_s: float) -> None:
        """Note when the pod's gang was placed: its run counts from that moment."""
        pod.placed_s = placed_s
        if not pod.gone:
            self._arm(pod)

    def pods_listed(self, items: Iterable[Json]) -> None:
        """Take a complete list of bound pods: a pod that is not in it is gone."""
        ordered = sorted(items, key=arrival_order)
        present = {item["metadata"]["uid"] for item in ordered}
        for uid in [uid for uid in self._pod_by_uid if uid not in present]:
            self.pod_gone(uid)
        for item in ordered:
            self.pod_seen(item)

    def pod_seen(self, item: Json) -> None:
        """A pod was bound or changed."""
        metadata = item["metadata"]
        pod = self._pod_by_uid.get(metadata["uid"])
        if pod is None:
            machine = self.machines.get(item["spec"].get("nodeName", ""))
            if machine is None:
                return
            pod = self._keep(pod_from_json(item, machine))
        elif metadata.get("generation", 0) > pod.asked_generation:
            self._resizer.edited(pod, item)
        if pod.told_s is None and ANNOTATION_STOP in (metadata.get("annotations") or {}):
            pod.told_s = self._now()
            self._arm(pod)
        if metadata.get("deletionTimestamp"):
            grace_s = float(metadata.get("deletionGracePeriodSeconds") or 0)
            pod.grace_s = grace_s if pod.grace_s is None else min(grace_s, pod.grace_s)
        if not pod.machine.silent:
            self._attend(pod)

    def pod_gone(self, uid: str) -> None:
        """The API object is gone: remove the pod from its machine."""
        pod = self._pod_by_uid.pop(uid, None)
        if pod is None:
            return
        pod.gone = True
        if self._pod_by_key.get(pod.key) is pod:
            del self._pod_by_key[pod.key]
        del pod.machine.pods[uid]
        self._resizer.release(pod)
        self._cancel(pod)
        pod.announce_end()

    def nodes_listed(self, items: Iterable[Json]) -> None:
        """Take a complete list of nodes: a machine that is not in it was taken away."""
        by_name = {item["metadata"]["name"]: item for item in items}
        for name in self.machines:
            if name in by_name:
                self.node_seen(by_name[name])
            else:
                self.node_gone(name)

    def node_seen(self, item: Json) -> None:
        """A node was made or changed: its annotation may silence its kubelet or let it speak again."""
        machine = self.machines.get(item["metadata"]["name"])
        if machine is None:
            return
        self._resizer.node_seen(machine, item)
        if machine.silent == is_lost(item):
            if not machine.silent and not is_ready(item):
                self.returned(machine)  # the node controller gave it up although it lives: it says so at once
            return
        if is_lost(item):
            machine.silent = True
            if _loss(item) == _REBOOT:
                self._reboot(machine)
            else:
                log.warning("%s is lost: its %d pods go on unseen", machine.name, len(machine.pods))
            return
        log.warning("%s is back: it reports its %d pods", machine.name, len(machine.pods))
        machine.silent = False
        self.returned(machine)
        for pod in list(machine.pods.values()):
            if pod.stage not in OVER and pod.stage is not Stage.ARRIVED:
                pod.revision += 1  # the node controller has marked it not ready meanwhile: report its state again
            self._report(pod)
            self._attend(pod)

    def _reboot(self, machine: Machine) -> None:
        log.warning("%s reboots: the containers of its %d pods are gone", machine.name, len(machine.pods))
        machine.boots += 1
        for pod in list(machine.pods.values()):
            if pod.stage is Stage.RUNNING:
                self._cancel(pod)
                pod.ended_s, pod.exit_code, pod.end_reason = self._now(), _LOST_TASK, "Unknown"
                self._ended(pod)

    def node_gone(self, name: str) -> None:
        """The Node object is gone: the machine was taken away, until a Node of that name is made again."""
        machine = self.machines.get(name)
        if machine is not None and not machine.silent:
            log.warning("%s was deleted: its %d pods are cut off", machine.name, len(machine.pods))
            machine.silent = True

    def _keep(self, pod: SimPod) -> SimPod:
        self._pod_by_uid[pod.uid] = self._pod_by_key[pod.key] = pod.machine.pods[pod.uid] = pod
        if pod.stage is not Stage.ARRIVED and pod.stage not in OVER:
            pod.machine.ledger.admit(pod.uid, pod.request)
            pod.address = pod.address or pod.machine.next_address()
            self._arm(pod)
        return pod

    def _attend(self, pod: SimPod) -> None:
        """Do what the API server asks of a pod on a machine that hears it."""
        if pod.grace_s is None and pod.stage is Stage.ARRIVED:
            self._admit(pod)
        elif pod.grace_s is not None and not pod.removal_due:
            self._stop(pod, pod.grace_s)
        self._resizer.attend(pod)
        if pod.timer is None:
            self._arm(pod)

    def _admit(self, pod: SimPod) -> None:
        pod.admitted_s = self._now()
        if pod.behaviour.refusal is not None:
            self._refuse(pod, pod.behaviour.refusal, pod.message or "asked for by annotation")
            return
        shortage = pod.machine.ledger.shortage(pod.request)
        if shortage is not None:
            self._refuse(pod, shortage.reason, shortage.message)
            return
        pod.machine.ledger.admit(pod.uid, pod.request)
        pod.address = pod.machine.next_address()
        pod.enter(Stage.CREATING)
        if pod.behaviour.runs_from_placement and pod.placed_s is None:
            self.ask_placed(pod)
        if pod.behaviour.never_starts or pod.behaviour.start_delay_s > _QUICK_S:
            self._report(pod)

    def _refuse(self, pod: SimPod, reason: str, message: str) -> None:
        log.warning("%s refuses %s: %s: %s", pod.machine.name, pod.key, reason, message)
        pod.reason, pod.message = reason, message
        pod.enter(Stage.REFUSED)
        self._report(pod)
        pod.announce_end()

    def _stop(self, pod: SimPod, grace_s: float) -> None:
        if pod.stage is not Stage.RUNNING:
            self._remove(pod)
            return
        stop_s = self._now() + min(grace_s, pod.behaviour.stop_s)
        if pod.stop_s is None or stop_s < pod.stop_s:
            pod.stop_s = stop_s
            self._arm(pod)

    def _remove(self, pod: SimPod) -> None:
        self._cancel(pod)
        self._resizer.release(pod)
        pod.removal_due = True
        self._report(pod)

    def _cancel(self, pod: SimPod) -> None:
        if pod.timer is not None:
            pod.timer.cancel()
            pod.timer = None

    def _arm(self, pod: SimPod) -> None:
        self._cancel(pod)
        due_s = pod.next_due_s()
        if due_s is not None and pod.stage not in OVER and not pod.removal_due:
            pod.timer = self._later(max(0.0, due_s - self._now()), self._due, pod)

    def _due(self, pod: SimPod) -> None:
        """Handle the moment that `next_due_s` named. On a silent machine nothing begins; containers only end."""
        is_resize = pod.resize_due_s is not None and pod.resize_due_s == pod.next_due_s()
        pod.timer = None
        if is_resize:
            self._resizer.due(pod)
        elif pod.stage is Stage.RUNNING:
            self._end(pod)
        elif not pod.machine.silent:
            self._advance(pod)

    def _advance(self, pod: SimPod) -> None:
        if pod.stage is Stage.PULL_FAILED:
            pod.enter(Stage.PULL_BACKING_OFF)
        elif pod.behaviour.fails_image_pull:
            pod.enter(Stage.PULL_FAILED)
        else:
            pod.started_s = self._now()
            pod.enter(Stage.RUNNING)
        self._arm(pod)
        self._report(pod)

    def _end(self, pod: SimPod) -> None:
        """The containers of a running pod end: by themselves, or stopped by a deletion."""
        run_out_s = pod.own_end_s()
        pod.ended_s = self._now() if run_out_s is None else min(self._now(), run_out_s)
        pod.exit_code = pod.behaviour.exit_code
        if pod.stop_s is not None and (run_out_s is None or pod.stop_s < run_out_s):
            is_in_time = pod.behaviour.stop_s <= (pod.grace_s or 0.0)
            pod.exit_code = _KILLED_BY_TERM if is_in_time else _KILLED_AFTER_GRACE
            pod.ended_s = pod.stop_s
        elif 0 < _memory_limit(pod) < pod.behaviour.needs_bytes:
            pod.exit_code, pod.end_reason = _KILLED_AFTER_GRACE, _OUT_OF_MEMORY
        self._ended(pod)

    def _ended(self, pod: SimPod) -> None:
        pod.enter(Stage.ENDED)
        self._resizer.release(pod)
        pod.removal_due = pod.stop_s is not None
        self._report(pod)
        pod.announce_end()


def _memory_limit(pod: SimPod) -> int:
    """Return the limit of the main container in bytes; 0: it has none."""
    size = pod.actual.get(pod.containers[0].name)
    return whole_from_quantity(size.limits.get("memory") or 0) if size is not None else 0
