"""A pod's JSON as a `SimPod`, including pods that an earlier process of ours was running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from coda.errors import InvalidInput
from coda_kube.objects import names
from coda_kube.objects.quantities import seconds_from_time
from coda_lab.kubelets.admission import request_of
from coda_lab.kubelets.behaviour import USUAL, Behaviour, behaviour_from_metadata
from coda_lab.kubelets.machine import Container, Machine, SimPod, Stage
from coda_lab.kubelets.resize_rules import request_if
from coda_lab.kubelets.resize_values import sizes_from_json

Json = Mapping[str, Any]


def arrival_order(item: Json) -> tuple[bool, str, str, str]:
    """Sort key of a list of pods: those a kubelet already handled first, then by age, as a kubelet admits."""
    metadata = item["metadata"]
    is_new = _stage_of(item.get("status") or {}) is Stage.ARRIVED
    return is_new, metadata["creationTimestamp"], metadata.get("namespace", ""), metadata["name"]


def pod_from_json(item: Json, machine: Machine) -> SimPod:
    """The pod at the stage its status shows. A pod with nonsense annotations is refused when it is handled."""
    metadata, spec = item["metadata"], item["spec"]
    labels = metadata.get("labels") or {}
    pod = SimPod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        machine=machine,
        containers=_containers(spec["containers"]),
        init_containers=_containers(spec.get("initContainers") or ()),
        request=request_of(spec),
        behaviour=USUAL,
        generation=metadata.get("generation", 0),
        asked_generation=metadata.get("generation", 0),
        job=labels.get(names.LABEL_JOB),
        rank=labels.get(names.LABEL_RANK),
        world_size=_environment(spec["containers"][0], "WORLD_SIZE"),
        wanted=sizes_from_json(spec),
        is_guaranteed=(item.get("status") or {}).get("qosClass") == "Guaranteed",
    )
    pod.allocated = pod.actual = pod.wanted
    try:
        pod.behaviour = behaviour_from_metadata(metadata)
    except InvalidInput as error:
        pod.behaviour = Behaviour(refusal="InvalidSimulationAnnotation")
        pod.message = str(error)
    planned = (metadata.get("annotations") or {}).get(names.ANNOTATION_PLANNED)
    if planned and pod.behaviour.runs_from_placement:
        pod.placed_s = seconds_from_time(planned)
    take_over(pod, item.get("status") or {})
    return pod


def take_over(pod: SimPod, status: Json) -> None:
    """Bring a pod to the stage its status shows: its run time counts from the main container's startedAt."""
    pod.stage = _stage_of(status)
    pod.address = status.get("podIP")
    pod.admitted_s = seconds_from_time(status.get("startTime"))
    pod.reason = status.get("reason")
    state = _main_state(pod.containers[0].name, status)
    run = state.get("running") or state.get("terminated") or {}
    pod.started_s = seconds_from_time(run.get("startedAt")) or pod.admitted_s
    pod.ended_s = seconds_from_time(run.get("finishedAt"))
    pod.exit_code = run.get("exitCode", 0)
    _take_over_sizes(pod, status)


def _take_over_sizes(pod: SimPod, status: Json) -> None:
    """Start an unfinished resize of an earlier process again: the running sizes are the promised ones."""
    sizes = dict(pod.wanted)
    for entry in status.get("containerStatuses") or ():
        resources, wanted = entry.get("resources"), pod.wanted.get(entry["name"])
        if resources and wanted is not None:
            requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
            sizes[entry["name"]] = replace(wanted, requests=requests, limits=limits)
            pod.restarts[entry["name"]] = entry.get("restartCount", 0)
    if sizes != pod.wanted:
        pod.request = request_if(pod, sizes)
        pod.allocated = pod.actual = sizes
        pod.was_resized = True


def _stage_of(status: Json) -> Stage:
    phase = status.get("phase")
    if phase in ("Succeeded", "Failed"):
        return Stage.ENDED
    if phase == "Running":
        return Stage.RUNNING
    return Stage.CREATING if status.get("startTime") else Stage.ARRIVED


def _containers(specs: Iterable[Json]) -> tuple[Container, ...]:
    return tuple(
        Container(name=spec["name"], image=spec.get("image", ""), is_sidecar=spec.get("restartPolicy") == "Always")
        for spec in specs
    )


def _environment(container: Json, name: str) -> str | None:
    return next((entry.get("value") for entry in container.get("env") or () if entry["name"] == name), None)


def _main_state(name: str, status: Json) -> Json:
    for entry in status.get("containerStatuses") or ():
        if entry["name"] == name:
            state: Json = entry.get("state") or {}
            return state
    return {}
