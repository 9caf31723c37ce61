"""Pod JSON -> `RankPod`: how far a rank came, and whether it was ended from outside.

The rank starts and ends with its main container. Source: Kubernetes' `pkg/kubelet/kubelet_pods.go`. Each case that was
seen is a row of a table in `tests/operator_tests/view/test_rank_pods.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from coda.errors import InvalidInput
from coda.lifecycle import PodState, RankPod
from coda.lifecycle.failures import BAD_IMAGE_NAME
from coda.wording import listed
from coda_kube.failures.evictions import overuse_of
from coda_kube.objects.names import (
    ANNOTATION_BOOT,
    ANNOTATION_PLAN,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
    RANK_FINALIZER,
    pod_name,
)
from coda_kube.objects.pods.main_container import images_of, main_container, main_status
from coda_kube.objects.pods.node_terms import pin_of
from coda_kube.objects.pods.stops import announcement_from_metadata
from coda_kube.objects.quantities import seconds_from_time
from coda_operator.view.rank_sizes import rank_size_from_json

Item = Mapping[str, Any]

_BEING_CREATED = frozenset({"ContainerCreating", "PodInitializing"})  # the second one of pods with init containers
_ORDINARY_WAITS = _BEING_CREATED | {""}
_OWN_ENDS = frozenset({"DeadlineExceeded"})  # reasons on the pod that the template causes
_OWN_EVICTIONS = ("exceeds the limit", "exceeds the total limit", "exceeded its local ephemeral storage limit")
_LOST = "ContainerStatusUnknown"  # the kubelet no longer found the container: its node was restarted
_SCHEDULER_ERROR = "SchedulerError"  # kube-scheduler could not decide, and tries again
_AWAITS_VOLUME = ("waiting for ephemeral volume controller", "unbound immediate PersistentVolumeClaims")
"""What kube-scheduler says of a volume that is being made: no other node has it sooner, and a deleted pod takes it with
it. Source: its `volumebinding` plugin and `ephemeral.VolumeIsForPod`. It leaves the words there until the binding."""
_BY_KUBELET = "TerminationByKubelet"
_ENDED = (PodState.SUCCEEDED, PodState.FAILED)
LONGEST_START_S = 10.0  # from the bind, which the API server stamps, until the kubelet takes the pod; our choice
SEEN_LATE_S = 60.0  # an end that is seen so long after it counts as the pod tells; our choice: clocks differ
LONGEST_WAIT_S = 120.0  # from the creation, where nobody says when it was bound


def rank_pod_from_json(
    pod: Item, *, now_s: float, before: RankPod | None = None, seen_until_s: float | None = None
) -> RankPod:
    """Return a pod of a gang. `before`: as it was known; since when it is unschedulable is by our own clock.

    `seen_until_s`: until then each change was seen as it happened; None: until now; 0: the pod may be older than this
    process. If that one runs, nobody knows since when; of one that has ended, nobody saw that it ran."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    main = main_status(pod)
    state, disrupted = _outcome(pod, main, before)
    reason, message = _trouble(main, spec, status)
    labels = metadata["labels"]
    attempt, rank = _number(labels.get(LABEL_ATTEMPT)), _number(labels.get(LABEL_RANK))
    finalizers = tuple(metadata.get("finalizers") or ())
    known = before if before is not None and before.uid == metadata["uid"] else None
    has_started, has_ended = state is not PodState.WAITING, state in _ENDED
    is_older, notes = seen_until_s == 0.0 and known is None, metadata.get("annotations") or {}
    preparing = _preparing(pod) if state is PodState.WAITING else ""
    from_s = min(now_s, _told_binding_s(status)) if is_older else now_s
    begun_s, over_s = _unseen_run(pod, main, known, now_s if seen_until_s is None else seen_until_s, now_s)
    return RankPod(
        name=metadata["name"],
        uid=metadata["uid"],
        attempt=attempt,
        rank=rank,
        plan_id=notes.get(ANNOTATION_PLAN, ""),
        node=spec.get("nodeName") or None,
        pinned_to=pin_of(spec),
        owned=_is_owned(metadata),
        named=metadata["name"] == pod_name(labels.get(LABEL_JOB, ""), attempt, rank),
        held=RANK_FINALIZER in finalizers,
        state=state,
        ended=status.get("phase") in ("Failed", "Succeeded"),
        winds_down_s=_winds_down_s(pod) if has_ended else 0.0,
        terminating="deletionTimestamp" in metadata,
        gone_by_s=_gone_by_s(metadata, now_s, known),
        shorten_to_s=_shorten_to_s(metadata, spec),
        finalizers=tuple(name for name in finalizers if name != RANK_FINALIZER),
        unschedulable_since_s=_first_s(
            _is_refused(spec, status), now_s, known.unschedulable_since_s if known is not None else None
        ),
        has_claims=_has_claims(spec),
        awaits_volume=not spec.get("nodeName") and _awaits_volume(spec, status),
        bound_s=_first_s(bool(spec.get("nodeName")), from_s, known.bound_s if known else None),
        creating_since_s=_first_s(_is_created_now(pod, main, state), now_s, known.creating_since_s if known else None),
        preparing=preparing,
        preparing_since_s=_first_s(bool(preparing), now_s, known.preparing_since_s if known else None),
        started_s=_first_s(
            has_started and not (is_older and has_ended), 0.0 if is_older else now_s, known.started_s if known else None
        ),
        ended_s=_first_s(has_ended, now_s, known.ended_s if known else None),
        over_s=over_s,
        begun_s=begun_s,
        exit_code=_terminated(main).get("exitCode"),
        failed_container=_failed_before_main(main, spec, status),
        disrupted=disrupted,
        overuse=overuse_of(status, main_container(pod).get("name", "")) if disrupted else "",
        bad_image=_bad_image(main, pod["spec"], status) if state is PodState.WAITING else None,
        reason=reason,
        message=message,
        size=rank_size_from_json(pod, main) if state is PodState.STARTED else None,
        told=_told(metadata),
        boot=sys.intern(notes.get(ANNOTATION_BOOT, "")),  # thousands of pods have the same one
    )


def _told(metadata: Item) -> str:
    """Return the placement whose end was announced to the pod, as far as its annotation can be read."""
    try:
        announcement = announcement_from_metadata(metadata)
    except InvalidInput:
        return ""
    return "" if announcement is None else announcement.id


def of_attempt(gone: Mapping[str, tuple[int, set[int]]], job_uid: str, attempt: int) -> frozenset[int]:
    """Return the ranks of that attempt whose pods are gone."""
    newest, ranks = gone.get(job_uid, (0, set()))
    return frozenset(ranks) if newest == attempt else frozenset()


def note_gone(gone: dict[str, tuple[int, set[int]]], job_uid: str, pod: RankPod) -> None:
    """Add the rank of a pod that is gone; ranks of older attempts are forgotten."""
    attempt, ranks = gone.get(job_uid, (pod.attempt, set()))
    if pod.attempt > attempt:
        attempt, ranks = pod.attempt, set()
    if pod.attempt == attempt:
        ranks.add(pod.rank)
        gone[job_uid] = attempt, ranks


def _number(label: str | None) -> int:
    """Return the number of a label; -1 for one that the operator never writes."""
    return int(label) if label and len(label) < 10 and label.isascii() and label.isdecimal() else -1


def _is_owned(metadata: Item) -> bool:
    """True if the job that the labels name owns the pod. After `--cascade=orphan` nobody does."""
    uid, name = metadata["labels"].get(LABEL_JOB_UID), metadata["labels"].get(LABEL_JOB)
    owners = metadata.get("ownerReferences") or ()
    return any((owner["kind"], owner["uid"], owner["name"]) == (KIND, uid, name) for owner in owners)


def _terminated(container: Item) -> Item:
    return (container.get("state") or {}).get("terminated") or {}


def _outcome(pod: Item, main: Item, before: RankPod | None) -> tuple[PodState, bool]:
    """Return how far the rank came, and whether it was ended from outside. What was seen of its end stays true."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    known = before if before is not None and before.uid == metadata["uid"] else None
    if known is not None and known.state in _ENDED:
        return known.state, known.disrupted
    phase, ended = status.get("phase"), _terminated(main)
    stopped = (bool(ended) and known is not None and known.terminating) or _was_stopped(metadata, status, ended)
    done = ended.get("exitCode") == 0 or phase == "Succeeded"
    if done and not stopped and not (phase == "Failed" and status.get("reason")):
        return PodState.SUCCEEDED, False  # its sidecars do not matter
    if not ended and phase not in ("Failed", "Succeeded"):
        return PodState.STARTED if "running" in (main.get("state") or {}) else PodState.WAITING, False
    if _is_own_end(status):
        return PodState.FAILED, False
    refused = not ended and _failed_container(pod["spec"], status) is None
    return PodState.FAILED, stopped or refused or bool(status.get("reason")) or _is_lost_container(ended)


def _is_own_end(status: Item) -> bool:
    """True for an end that Kubernetes ordered and the template causes."""
    reason, message = status.get("reason"), status.get("message") or ""
    return reason in _OWN_ENDS or (reason == "Evicted" and any(said in message for said in _OWN_EVICTIONS))


def _is_lost_container(ended: Item) -> bool:
    """True if the runtime lost the container, as at a reboot. Source: containerd's exit code of a lost task."""
    return ended.get("reason") == _LOST or (ended.get("exitCode") == 255 and ended.get("reason") == "Unknown")


def _was_stopped(metadata: Item, status: Item, ended: Item) -> bool:
    """True if the main container was told to end before it had ended.

    An exit code of 0 is then only its answer to SIGTERM. Clocks of two machines are not compared. The kubelet's mark
    and the end have one clock; whoever else marks a pod also deletes it."""
    failed = ended.get("exitCode") != 0
    for condition in status.get("conditions") or ():
        if condition["type"] != "DisruptionTarget" or condition["status"] != "True":
            continue
        ended_s = seconds_from_time(ended.get("finishedAt"))
        by_kubelet = condition.get("reason") == _BY_KUBELET
        if by_kubelet and (not ended_s or ended_s >= seconds_from_time(condition.get("lastTransitionTime"))):
            return True
        if not by_kubelet and failed:
            return True
    if not ended or "deletionTimestamp" not in metadata:
        return False
    return failed or not _ended_before_deletion(metadata, status, ended)


def _ended_before_deletion(metadata: Item, status: Item, ended: Item) -> bool:
    """True if the pod of an unseen end had ended before its deletion was requested.

    The kubelet told the end before it knew of the deletion, which is a new generation. Or durations show it: the API
    server says how long the pod was bound, its kubelet how long it ran; in between is the short time to its start."""
    if 0 < (status.get("observedGeneration") or 0) < (metadata.get("generation") or 0):
        return True
    from_s, longest_start_s = _told_binding_s(status), LONGEST_START_S
    if not from_s:
        from_s, longest_start_s = seconds_from_time(metadata.get("creationTimestamp")), LONGEST_WAIT_S
    started_s, ended_s = seconds_from_time(status.get("startTime")), seconds_from_time(ended.get("finishedAt"))
    if not (from_s and started_s and ended_s):
        return False
    asked_s = seconds_from_time(metadata["deletionTimestamp"]) - (metadata.get("deletionGracePeriodSeconds") or 0)
    return asked_s - from_s > ended_s - started_s + longest_start_s


def _told_binding_s(status: Item) -> float:
    """Return when the API server says that the pod was bound; 0 if it does not say so."""
    conditions = status.get("conditions") or ()
    return seconds_from_time(
        next((c.get("lastTransitionTime") for c in conditions if c["type"] == "PodScheduled"), None)
    )


def _unseen_run(pod: Item, main: Item, known: RankPod | None, seen_until_s: float, now_s: float) -> tuple[float, float]:
    """Return when the rank had started and ended, if the pod tells that the end was long ago; else 0 and 0.

    The API server says when the pod was bound, its kubelet how long it was there: clocks are not compared. But that
    one may have been set meanwhile: no end is before `seen_until_s`, until when it would have been seen."""
    if known is not None and known.state in _ENDED:
        return known.begun_s, known.over_s
    status, ended = pod.get("status") or {}, _terminated(main)
    bound_s, start_s = _told_binding_s(status), seconds_from_time(status.get("startTime"))
    lived_s = seconds_from_time(ended.get("finishedAt")) - start_s
    is_told = bound_s and start_s and lived_s >= 0  # so it has ended
    over_s = max(bound_s + lived_s, seen_until_s)
    if not is_told or now_s - over_s <= SEEN_LATE_S:
        return 0.0, 0.0
    waited_s = seconds_from_time(ended.get("startedAt")) - start_s  # for its image, say
    return bound_s + min(max(0.0, waited_s), lived_s), over_s


def _failed_container(spec: Item, status: Item) -> Item | None:
    """Return a failed container other than the main one, which never starts after a failed init container.

    A native sidecar only if no other failed: its kubelet ends it when one does, and it may answer with any code."""
    sidecars = _sidecars(spec)
    failed = [entry for entry in _others(status) if _terminated(entry).get("exitCode", 0) != 0]
    return min(failed, key=lambda entry: entry["name"] in sidecars, default=None)


def _failed_before_main(main: Item, spec: Item, status: Item) -> str:
    """Return the name of the container that failed before the main one started; "" if none did, or not of itself."""
    if status.get("phase") != "Failed" or status.get("reason") or _terminated(main):
        return ""
    failed = _failed_container(spec, status)
    return "" if failed is None else sys.intern(failed["name"])


def _others(status: Item) -> Iterator[Item]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _is_created_now(pod: Item, main: Item, state: PodState) -> bool:
    """True while the kubelet creates the main container, or one before it: no init container keeps it waiting.

    It may pull the image, or mount a volume for ever: it says so in events alone. Source: its `defaultWaitingState`."""
    reason = ((main.get("state") or {}).get("waiting") or {}).get("reason")
    if state is not PodState.WAITING or reason not in _BEING_CREATED:
        return False
    return not _preparing(pod)


def _preparing(pod: Item) -> str:
    """Return the name of the running container that must end, or be started, before the next may; "" if none must."""
    sidecars = _sidecars(pod["spec"])
    entries = (pod.get("status") or {}).get("initContainerStatuses") or ()
    running = (entry for entry in entries if "running" in (entry.get("state") or {}))
    waits = (entry["name"] for entry in running if entry["name"] not in sidecars or not entry.get("started"))
    return sys.intern(next(waits, ""))


def _sidecars(spec: Item) -> set[str]:
    """Return the names of the native sidecars: init containers that run beside the main one."""
    init_containers = spec.get("initContainers") or ()
    return {container["name"] for container in init_containers if container.get("restartPolicy") == "Always"}


def _first_s(is_true: bool, now_s: float, known_s: float | None) -> float | None:
    return (now_s if known_s is None else known_s) if is_true else None


def _gone_by_s(metadata: Item, now_s: float, known: RankPod | None) -> float:
    if "deletionTimestamp" not in metadata:
        return 0.0
    gone_by_s = now_s + float(metadata.get("deletionGracePeriodSeconds") or 0)
    return min(known.gone_by_s, gone_by_s) if known is not None and known.terminating else gone_by_s


def _winds_down_s(pod: Item) -> float:
    """Return the grace period if only native sidecars may still run: then the kubelet ends them. Else 0.

    Containers beside the main one are the user's to end. Source: KEP-753."""
    entries = (pod.get("status") or {}).get("containerStatuses") or ()
    ended = {entry.get("name") for entry in entries if _terminated(entry)}
    if any(container["name"] not in ended for container in pod["spec"].get("containers") or ()):
        return 0.0
    return float(max(1, pod["spec"].get("terminationGracePeriodSeconds", 30)))


def _shorten_to_s(metadata: Item, spec: Item) -> int:
    """Return the grace period of a pod's spec if its deletion has a longer one: the API server lets it be shortened.

    A second at least: with 0 the pod is gone before its kubelet has stopped it."""
    own_s = max(1, spec.get("terminationGracePeriodSeconds", 30))  # which is the default of Kubernetes
    is_longer = "deletionTimestamp" in metadata and (metadata.get("deletionGracePeriodSeconds") or 0) > own_s
    return own_s if is_longer else 0


def _is_refused(spec: Item, status: Item) -> bool:
    """True if kube-scheduler says that the pod fits nowhere, and not that it awaits a volume."""
    return _said_of(status).get("reason") == "Unschedulable" and not _awaits_volume(spec, status)


def _awaits_volume(spec: Item, status: Item) -> bool:
    """True if kube-scheduler says that a volume is being made, or has nominated the pod's node for it.

    Then it waits until the volumes are bound, and the words are old. Its own errors tell of no volume."""
    said, nominated = _said_of(status), status.get("nominatedNodeName")
    if not _has_claims(spec) or said.get("reason", "Unschedulable") != "Unschedulable":
        return False
    words = said.get("message") or ""
    return any(one in words for one in _AWAITS_VOLUME) or bool(nominated and nominated == pin_of(spec))


def _said_of(status: Item) -> Item:
    """Return the condition in which kube-scheduler says why it did not bind the pod; empty if there is none."""
    conditions = status.get("conditions") or ()
    return next((one for one in conditions if one["type"] == "PodScheduled" and one.get("status") != "True"), {})


def _has_claims(spec: Item) -> bool:
    """True if the pod has volumes that must be bound before it is: by claims of its own, or by others."""
    return any("ephemeral" in volume or "persistentVolumeClaim" in volume for volume in spec.get("volumes") or ())


def _trouble(main: Item, spec: Item, status: Item) -> tuple[str, str]:
    """Return why the pod failed, cannot start or is not scheduled: reason and message; empty if nothing is wrong.

    kube-scheduler may write a refusal after the binding: of a bound pod it says nothing. Its own errors, as when an
    extender is away, are no trouble of the pod: they have a message only."""
    if ended := _terminated(main):
        return ended.get("reason") or "", ended.get("message") or ""
    if status.get("phase") == "Failed":
        return _failure(spec, status)
    for entry in (main, *_others(status)):
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if (waiting.get("reason") or "") not in _ORDINARY_WAITS:
            return waiting["reason"], waiting.get("message") or ""
    if spec.get("nodeName"):
        return "", ""
    if gates := [gate["name"] for gate in spec.get("schedulingGates") or ()]:
        return "SchedulingGated", f"its scheduling gates are {listed(gates)}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", condition.get("message") or ""
        if condition["type"] == "PodScheduled" and condition.get("reason") == _SCHEDULER_ERROR:
            return "", condition.get("message") or ""
    return "", ""


def _bad_image(main: Item, spec: Item, status: Item) -> tuple[str, str] | None:
    """Return name and image of the main container, or of one before it, whose image has no valid name; None: none.

    Those beside it may lack."""
    for entry in (main, *(status.get("initContainerStatuses") or ())):
        if ((entry.get("state") or {}).get("waiting") or {}).get("reason") == BAD_IMAGE_NAME:
            return next((one for one in images_of(spec) if one[0] == entry["name"]), (entry["name"], ""))
    return None


def _failure(spec: Item, status: Item) -> tuple[str, str]:
    """Return reason and message of a pod that failed before its main container started."""
    failed = _failed_container(spec, status)
    if failed is None or status.get("reason"):
        return status.get("reason") or "", status.get("message") or ""
    ended = _terminated(failed)
    said = f": {ended['reason']}" if ended.get("reason") not in (None, "", "Error") else ""
    return f"its container {failed['name']} ended with exit code {ended['exitCode']}{said}", ended.get("message") or ""
