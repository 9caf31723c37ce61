"""The status that a kubelet writes for a pod at each stage, as a strategic merge patch. Pure: a SimPod in, JSON out.

Conditions merge by type, so PodScheduled and the conditions of other controllers stay; a null removes what an earlier
stage wrote. Source: `pkg/kubelet/status/generate.go` and `kubelet_pods.go` of Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Any

from coda_kube.objects.quantities import time_from_seconds
from coda_lab.kubelets.machine import OVER, Container, SimPod, Stage
from coda_lab.kubelets.resize_rules import conditions
from coda_lab.kubelets.resize_values import Manner

Json = dict[str, Any]

HOST_ADDRESS = "127.0.0.1"

_WAITING = {
    Stage.CREATING: ("ContainerCreating", None),
    Stage.PULL_FAILED: ("ErrImagePull", 'failed to pull image "{image}": not found'),
    Stage.PULL_BACKING_OFF: ("ImagePullBackOff", 'Back-off pulling image "{image}": not found'),
}


def status_patch(pod: SimPod) -> Json:
    """The patch of the pod's status subresource. With the uid in it, it cannot hit another pod of the same name."""
    status = _refused(pod) if pod.stage is Stage.REFUSED else _lived(pod)
    return {"metadata": {"uid": pod.uid}, "status": {"observedGeneration": pod.generation} | status}


def phase_of(pod: SimPod) -> str:
    """The phase the stage means."""
    if pod.stage is Stage.RUNNING:
        return "Running"
    if pod.stage is Stage.ENDED and pod.exit_code == 0:
        return "Succeeded"
    return "Failed" if pod.stage in OVER else "Pending"


def waiting_reason(pod: SimPod) -> str | None:
    """Why the main container has not started; None once it has."""
    if pod.stage is Stage.CREATING and pod.init_containers:
        return "PodInitializing"
    return _WAITING[pod.stage][0] if pod.stage in _WAITING else None


def _refused(pod: SimPod) -> Json:
    return {
        "phase": "Failed",
        "reason": pod.reason,
        "message": f"Pod was rejected: {pod.message}",
        "startTime": time_from_seconds(pod.admitted_s),
    }


def _lived(pod: SimPod) -> Json:
    address = {"podIP": pod.address, "podIPs": [{"ip": pod.address}]} if pod.stage is not Stage.CREATING else {}
    return address | {
        "phase": phase_of(pod),
        "hostIP": HOST_ADDRESS,
        "hostIPs": [{"ip": HOST_ADDRESS}],
        "startTime": time_from_seconds(pod.admitted_s),
        "conditions": _conditions(pod) + conditions(pod),
        "initContainerStatuses": [_init_container_status(pod, container) for container in pod.init_containers],
        "containerStatuses": [_container_status(pod, container) for container in pod.containers],
    }


def _conditions(pod: SimPod) -> list[Json]:
    in_sandbox = pod.stage in (Stage.RUNNING, Stage.PULL_FAILED, Stage.PULL_BACKING_OFF)
    is_initialized = pod.stage is not Stage.CREATING or not pod.init_containers
    is_ready = pod.stage is Stage.RUNNING
    since_s = {Stage.RUNNING: pod.started_s, Stage.ENDED: pod.ended_s}.get(pod.stage, pod.admitted_s)
    reason: str | None = "ContainersNotReady"
    message: str | None = f"containers with unready status: [{' '.join(each.name for each in pod.containers)}]"
    if is_ready:
        reason = message = None
    elif pod.stage is Stage.ENDED:
        reason, message = ("PodCompleted", None) if pod.exit_code == 0 else ("PodFailed", None)
    started_s = pod.started_s or pod.admitted_s
    return [
        _condition("PodReadyToStartContainers", in_sandbox, pod.ended_s if pod.stage is Stage.ENDED else started_s),
        _condition("Initialized", is_initialized, started_s, None if is_initialized else "ContainersNotInitialized"),
        _condition("ContainersReady", is_ready, since_s, reason, message),
        _condition("Ready", is_ready, since_s, reason, message),
    ]


def _condition(kind: str, holds: bool, since_s: float, reason: str | None = None, message: str | None = None) -> Json:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "lastProbeTime": None,
        "lastTransitionTime": time_from_seconds(since_s),
        "reason": reason,
        "message": message,
    }


def _container_status(pod: SimPod, container: Container) -> Json:
    if pod.stage is Stage.RUNNING:
        return _named(pod, container, _running(pod.started_s), True) | _sizes(pod, container)
    if pod.stage is Stage.ENDED:
        exit_code = pod.exit_code if container is pod.containers[0] else 0
        return _named(pod, container, _terminated(pod, container, exit_code, pod.started_s, pod.ended_s), False)
    reason, message = waiting_reason(pod), _WAITING[pod.stage][1]
    words = {"message": message.format(image=container.image)} if message else {}
    return _named(pod, container, {"waiting": {"reason": reason} | words}, False)


def _sizes(pod: SimPod, container: Container) -> Json:
    allocated, actual = pod.allocated.get(container.name), pod.actual.get(container.name)
    if allocated is None or actual is None or pod.machine.manners.manner is Manner.UNSUPPORTED:
        return {}
    restarts = {"restartCount": pod.restarts[container.name]} if container.name in pod.restarts else {}
    return {"allocatedResources": dict(allocated.requests), "resources": actual.json()} | restarts


def _init_container_status(pod: SimPod, container: Container) -> Json:
    """A plain init container has ended once the main ones are reported; a sidecar runs as long as they do."""
    if pod.stage is Stage.CREATING:
        return _named(pod, container, {"waiting": {"reason": waiting_reason(pod)}}, False)
    if not container.is_sidecar:
        ended_s = pod.started_s or pod.admitted_s
        return _named(pod, container, _terminated(pod, container, 0, pod.admitted_s, ended_s), True)
    if pod.stage is Stage.ENDED:
        return _named(pod, container, _terminated(pod, container, 0, pod.admitted_s, pod.ended_s), False)
    return _named(pod, container, _running(pod.admitted_s), True)


def _running(since_s: float) -> Json:
    return {"running": {"startedAt": time_from_seconds(since_s)}}


def _terminated(pod: SimPod, container: Container, exit_code: int, started_s: float, ended_s: float) -> Json:
    return {
        "terminated": {
            "exitCode": exit_code,
            "reason": pod.end_reason or ("Completed" if exit_code == 0 else "Error"),
            "startedAt": time_from_seconds(started_s),
            "finishedAt": time_from_seconds(ended_s),
            "containerID": _container_id(pod, container),
        }
    }


def _named(pod: SimPod, container: Container, state: Json, ready: bool) -> Json:
    status = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "state": state,
        "ready": ready,
        "started": "running" in state,
        "restartCount": 0,
    }
    return status if "waiting" in state else status | {"containerID": _container_id(pod, container)}


def _container_id(pod: SimPod, container: Container) -> str:
    return f"simulated://{pod.uid}/{container.name}"
