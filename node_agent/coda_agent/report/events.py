"""Events on pods: throttles that are made, changed or ended, and a GPU that has no room for a pod any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coda.contention import Action, Means, ThrottleReason
from coda_agent.cluster import LocalPod
from coda_agent.resctrl import Unit
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT
from coda_kube.objects.quantities import micro_time_from_seconds

_AMOUNTS: Mapping[Unit, str] = {
    Unit.PERCENT: "{:g} %",
    Unit.MIB_PER_S: "{:g} MiB/s",
    Unit.EIGHTHS: "{:g} eighths of a GB/s",
}


REASON_TEXTS: Mapping[ThrottleReason, str] = {
    ThrottleReason.CONTENDED: "training jobs suffer from memory traffic",
    ThrottleReason.PROBE: "whether training jobs suffer from memory traffic is tried",
    ThrottleReason.NO_GAIN: "it helped no training job",
    ThrottleReason.PROBATION: "it helped, and whether it is still needed is tried",
    ThrottleReason.CALM: "the memory traffic has gone down",
    ThrottleReason.NO_VICTIM: "the training jobs that it helped are gone, or cannot be judged",
    ThrottleReason.BLIND: "nothing could be measured for too long",
    ThrottleReason.PROTECTED: "it may not be throttled any more",
}


def events_json(action: Action, pods: Mapping[str, LocalPod], unit: Unit, node: str, now_s: float) -> list[Json]:
    """Return an event for every throttled pod of the action, and for every pod that it helps.

    `pods`: by uid. `unit`: of bandwidth limits."""
    about = _about(action, unit)
    events = [_event(pod, about, node, now_s, action) for pod in _known(action.pods, pods)]
    names = ", ".join(pod.id for pod in _known(action.pods, pods))
    for pod in _known(action.jobs, pods):
        events.append(_event(pod, f"{about} ({names})", node, now_s, action))
    return events


def crowded_event_json(pod: LocalPod, gpu: str, node: str, now_s: float, *, ends: bool) -> Json:
    """Return the event of a pod that stands still on the GPU with this UUID, or `ends` for who has that whole."""
    note = (
        f"is stopped: the pod that has {gpu} whole waits for its memory; it is queued again"
        if ends
        else f"stands still: {gpu} has no room for it beside the pod that has it whole. "
        "A gang or a job with resumable: true is moved; others go on once there is room"
    )
    return _event_json(pod, ("Warning", "CrowdedOut", "Sharing"), note, node, now_s)


def _about(action: Action, unit: Unit) -> str:
    if action.means is Means.CORES:
        what = f"CPU limit back at {action.value:g} cores" if action.ends else f"CPU limit {action.value:g} cores"
    else:
        where = f"memory bandwidth on socket {action.socket}"
        what = (
            f"{where} unlimited again" if action.ends else f"{where} limited to {_AMOUNTS[unit].format(action.value)}"
        )
    return f"{what}: {REASON_TEXTS[action.reason]}"


def _event(pod: LocalPod, note: str, node: str, now_s: float, action: Action) -> Json:
    throttles = not action.ends and action.reason in (ThrottleReason.CONTENDED, ThrottleReason.PROBE)
    reason = "Throttled" if throttles else "ThrottleReleased"
    return _event_json(pod, ("Normal", reason, "Throttling"), note, node, now_s)


def _event_json(pod: LocalPod, kind: tuple[str, str, str], note: str, node: str, now_s: float) -> Json:
    """`kind`: type, reason and action."""
    kind_of, reason, action = kind
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod.name[:200]}.", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "reason": reason,
        "message": note[:1000],
        "type": kind_of,
        "eventTime": micro_time_from_seconds(now_s),
        "action": action,
        "reportingComponent": AGENT,
        "reportingInstance": node,
    }


def _known(uids: Iterable[str], pods: Mapping[str, LocalPod]) -> list[LocalPod]:
    return [pods[uid] for uid in uids if uid in pods]
