"""What is wrong with an attempt, and whose fault it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coda.diagnosis import Diagnosis, Reason, Retry
from coda.lifecycle.deadlines import NOT_CREATED_S, runs_until_s, starts_by_s
from coda.lifecycle.node_loss import ended_with_its_node
from coda.lifecycle.state import (
    UNDER_WAY,
    LifecycleConfig,
    PodState,
    Progress,
    RankPod,
    Situation,
    is_lost,
    lost_ranks,
    missing_ranks,
    of_attempt,
)
from coda.wording import claims_text

POD_GONE = "PodGone"
RANK_FAILED = "RankFailed"
UNSCHEDULABLE = "Unschedulable"
START_DEADLINE = "StartDeadlineExceeded"
BAD_IMAGE_NAME = "InvalidImageName"
"""What a kubelet says of an image whose name it cannot read: so does every other, until somebody changes it."""
AWAITS_VOLUME = "AwaitsVolume"
"""The reason of a gang with a rank that is not bound yet because its volumes are still made: nothing is wrong."""
NEVER_PULLED = "ErrImageNeverPull"
"""What it says of an image that is not on its node, and that it may not pull."""
_NO_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"})
"""What it says, in turns, of one image that it cannot pull. Source: Kubernetes' `pkg/kubelet/images`."""
NOT_CREATED = "ContainerCreating"
"""The reason of a gang with a rank that its kubelet has not created yet: its own word. Events alone say why."""
PREPARING = "PodInitializing"
"""The reason of a gang with a rank whose init container runs for long: its kubelet's own word."""
SUBMIT_AGAIN = "delete it and submit it again"
"""What runs a job again that has ended: the API server refuses edits of its spec."""
_OF_PEERS = frozenset({Reason.MPI, Reason.MPI_RUNTIME, Reason.PREEMPTED})
"""What ranks say that lost a peer, or that were told to end."""
MOST_AVOIDED = 64
"""Nodes that one failure makes a job avoid. Our choice: the status stays short."""
MOST_SAID = 300
"""Characters of kube-scheduler's words. Our choice: its reasons come first, and what preemption cannot do last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt cannot go on. `own`: the job's own fault, counted against `spec.retries`."""

    own: bool
    reason: str
    message: str
    nodes: tuple[str, ...] = ()  # to avoid from now on
    is_last: bool = False  # another attempt would fail the same way
    overused_by: RankPod | None = None  # who was evicted for what it had used up


def gang_failure(now: Situation, now_s: float, config: LifecycleConfig) -> Failure | None:
    """Return the failure of an attempt whose pods were all created, or None. A missing pod is a failure too."""
    missing = missing_ranks(now)
    return pod_gone(missing[0]) if missing else attempt_failure(now, now_s, config)


def pod_gone(rank: int) -> Failure:
    """Return the failure of an attempt that lost a pod."""
    return Failure(own=False, reason=POD_GONE, message=f"the pod of rank {rank} is gone")


def attempt_failure(now: Situation, now_s: float, config: LifecycleConfig) -> Failure | None:
    """Return the first failure of the attempt's pods, or None: an own failure before a disruption, then by rank.

    But a disruption goes before an own failure whose logs were read and name no cause of its own: that is its
    consequence. First of all a rank that used up its node: its peers fail of that.

    A pod that was seen and is gone is a failure even if a new pod has its name: no rank starts twice in an attempt."""
    if lost := lost_ranks(now):
        return pod_gone(min(lost))
    own_first = now.diagnosis is None or is_own_cause(now.diagnosis)
    found = [
        (failure.overused_by is None, failure.own != own_first, pod.rank, failure)
        for pod in of_attempt(now)
        if (failure := _pod_failure(pod, now, now_s, config)) is not None
    ]
    first = min(found, key=lambda entry: entry[:3])[3] if found else None
    return first if first is None or first.reason != UNSCHEDULABLE else _with_all_refusals(first, now)


def _with_all_refusals(first: Failure, now: Situation) -> Failure:
    """Return the failure with the nodes of all ranks that are refused now: each of them would cost an attempt."""
    refused = [pod for pod in of_attempt(now) if pod.unschedulable_since_s is not None and not pod.node]
    nodes = dict.fromkeys((*first.nodes, *[pod.pinned_to for pod in refused if pod.pinned_to]))
    return replace(first, nodes=tuple(nodes)[:MOST_AVOIDED])


def _pod_failure(pod: RankPod, now: Situation, now_s: float, config: LifecycleConfig) -> Failure | None:
    where = _where(pod)
    if pod.state is PodState.SUCCEEDED:
        return None
    if pod.terminating:
        return Failure(own=False, reason="PodDeleted", message=f"the pod of {where} was deleted by somebody else")
    if pod.state is PodState.FAILED and not pod.disrupted and ended_with_its_node(pod, now, config):
        message = f"{where} ended when its node went away"
        return Failure(own=False, reason="NodeOutage", message=message, nodes=_nodes(pod.node))
    if pod.state is PodState.FAILED and not pod.disrupted:
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        said = f": {pod.reason}" if pod.reason not in ("", "Error") else ""
        return Failure(own=True, reason=RANK_FAILED, message=f"{where} failed{code}{said}")
    if pod.state is PodState.FAILED:
        message = f"{where} was ended from outside: {pod.reason}" + (f": {pod.message}" if pod.message else "")
        by = pod if pod.overuse else None
        reason = pod.reason or "Disrupted"
        return Failure(own=False, reason=reason, message=message, nodes=_nodes(pod.node), overused_by=by)
    if pod.state is PodState.WAITING and pod.bad_image is not None:
        return _badly_named(pod, pod.bad_image, now)
    if pod.node and is_lost(pod.node, now, now_s, config):
        return Failure(own=False, reason="NodeLost", message=f"{where}: the node is not Ready", nodes=(pod.node,))
    if pod.node in now.unready_since_s and now.diagnosis is not None:
        message = f"{where}: the node stopped being Ready, and other ranks failed"
        return Failure(own=False, reason="NodeOutage", message=message, nodes=() if now.braked else _nodes(pod.node))
    since_s = None if pod.node else pod.unschedulable_since_s  # a refusal may be written after the binding
    if since_s is not None and now_s - since_s >= config.unschedulable_s:
        where = pod.pinned_to or "the node it was planned for"
        message = f"{where} refused rank {pod.rank}: {pod.message}"
        return Failure(own=False, reason=UNSCHEDULABLE, message=message, nodes=_nodes(pod.pinned_to))
    return None


def _badly_named(pod: RankPod, image: tuple[str, str], now: Situation) -> Failure:
    """Return the failure of an image with an invalid name. Nobody's job fails for good of what a webhook gave it."""
    said = f": {_in_one_line(pod.message)}" if pod.message else ""
    what, its = f"{_where(pod)} cannot start: {BAD_IMAGE_NAME}{said}", f"its container {image[0]}"
    if image not in now.terms.images:
        message = f"{what}; a webhook gave {its} that image, not its template: an administrator mends that"
        return Failure(own=False, reason=BAD_IMAGE_NAME, message=message)
    message = f"{what}; it is not tried again: correct the name of the image of {its}; then {SUBMIT_AGAIN}"
    return Failure(own=True, reason=BAD_IMAGE_NAME, message=message, is_last=True)


def is_own_cause(found: Diagnosis) -> bool:
    """True if the logs name a cause that stands whatever was ended beside it: no loss of a peer, and no guess."""
    if found.xid is not None:
        return True
    of_peers = found.retry is Retry.OTHER_NODE or (found.reason in _OF_PEERS and found.retry is not Retry.NO)
    return found.explicit and not of_peers


def broken_node(now: Situation, now_s: float, config: LifecycleConfig) -> str | None:
    """Return the node that the log of a rank on it shows to be broken, as a faulty GPU does; None: no log does.

    What ranks say that lost a peer blames no node; nor does a rank that was ended from outside. O(pods)."""
    found = now.diagnosis
    if found is None or found.retry is not Retry.OTHER_NODE or not found.explicit or found.reason in _OF_PEERS:
        return None
    pod = next((pod for pod in of_attempt(now) if pod.rank == found.rank), None)
    failure = None if pod is None else _pod_failure(pod, now, now_s, config)
    return None if pod is None or (failure is not None and failure.reason != RANK_FAILED) else pod.node


def awaits_news_s(now: Situation, now_s: float, config: LifecycleConfig) -> float:
    """Return until when an own failure is not judged, because a peer may have been ended from outside; 0: judge it.

    A kubelet that ends a pod says so when all its containers have ended; peers fail of the lost connection at once. So
    a failure without a cause of its own waits until each pod has ended, or one is known to be ended from outside, or
    `news_s` are over since the first failure was seen. Ended pods have nothing more to tell. O(pods)."""
    pods = of_attempt(now)
    is_gone = lost_ranks(now) or (now.progress.phase in UNDER_WAY and missing_ranks(now))
    if is_gone or (now.diagnosis is not None and is_own_cause(now.diagnosis)):
        return 0.0
    untold = [pod for pod in pods if pod.node and not pod.ended]
    if not untold or any(pod.node in now.unready_since_s for pod in untold):
        return 0.0
    failed = [(pod, failure) for pod in pods if (failure := _pod_failure(pod, now, now_s, config)) is not None]
    if not all(failure.own for _, failure in failed):
        return 0.0
    seen_s = min((pod.ended_s for pod, _ in failed if pod.ended_s is not None), default=now_s - config.news_s)
    until_s = min(seen_s, now_s) + config.news_s
    return until_s if until_s > now_s else 0.0


def _where(pod: RankPod) -> str:
    return f"rank {pod.rank}" + (f" on {pod.node}" if pod.node else "")


def _nodes(node: str | None) -> tuple[str, ...]:
    return (node,) if node else ()


def nodes_to_avoid(now: Situation, now_s: float) -> dict[str, float]:
    """Return the nodes that a waiting job avoids, with until when: its own, and those whose GPUs are suspect.

    A cordon that an administrator ended is forgotten."""
    own = {
        node: until_s
        for node, until_s in now.progress.avoid.items()
        if until_s > now_s and not is_ended_cordon(node, until_s, now)
    }
    return own | {node: max(until_s, own.get(node, 0.0)) for node, until_s in now.cordoned.items() if until_s > now_s}


def is_ended_cordon(node: str, until_s: float, now: Situation) -> bool:
    """True for the time of a cordon that an administrator ended: it is known by it, and the status has milliseconds."""
    return any(abs(until_s - ended_s) < 0.01 for ended_s in now.ended_cordons.get(node, ()))


def bind_deadline_missed(pods: tuple[RankPod, ...], replicas: int, in_a_row: int) -> Failure:
    """Return the failure of an attempt whose pods are not all bound in time, with kube-scheduler's words, if any.

    Nodes of unbound ranks are at fault if others were bound. With none bound, no node is: but where volumes are not
    made after another attempt in a row, other nodes may have better luck."""
    bound = sum(1 for pod in pods if pod.node)
    message = f"only {bound} of {replicas} pods were bound by the deadline"
    refused = min((pod for pod in pods if pod.message and not pod.node), key=lambda pod: pod.rank, default=None)
    if refused is not None:
        message += f"; kube-scheduler says of rank {refused.rank}: {_in_one_line(refused.message)}"
    late = [pod for pod in pods if not pod.node and (bound or (in_a_row and pod.awaits_volume))]
    nodes = tuple(sorted({pod.pinned_to for pod in late if pod.pinned_to}))[:MOST_AVOIDED]
    return Failure(own=False, reason="BindDeadlineExceeded", message=message, nodes=nodes)


def _in_one_line(said: str) -> str:
    """Without what a terminal would obey, and short enough to leave room for what Coda says."""
    text = " ".join("".join(char if char.isprintable() else " " for char in said).split())
    return text if len(text) <= MOST_SAID else text[: MOST_SAID - 3] + "..."


def start_deadline_missed(now: Situation, now_s: float) -> Failure | None:
    """Return the failure of a rank that has not started by the deadline, or None.

    It is the job's own fault; the message has what the kubelet says."""
    if now_s < starts_by_s(now, now.progress):
        return None
    pods = of_attempt(now)
    late = min((pod for pod in pods if pod.state is PodState.WAITING), key=_by_trouble, default=None)
    if late is None:
        return None
    why = f": {late.reason}" + (f": {late.message}" if late.message else "") if late.reason else ""
    if not late.reason and late.creating_since_s is not None:
        why = ": its container was not created (its image was being pulled, or a volume could not be mounted)"
        why += f"{_claims_text(now)}; see `kubectl events --for pod/{late.name}`"
    if not late.reason and late.preparing:
        why = f": its container {late.preparing} still ran; raise spec.startDeadlineSeconds if it needs more time"
    message = f"{_where(late)} did not start within {now.terms.start_deadline_s:g} s{why}"
    return Failure(own=True, reason=START_DEADLINE, message=message, nodes=_at_fault(late, pods))


def _by_trouble(pod: RankPod) -> tuple[bool, bool, bool, bool, int]:
    """Sort first what somebody complains of, then what awaits a volume, what is not created, what prepares itself.

    Then by rank."""
    is_wrong = bool(pod.reason) and not pod.awaits_volume
    return not is_wrong, not pod.awaits_volume, pod.creating_since_s is None, not pod.preparing, pod.rank


def _at_fault(late: RankPod, pods: tuple[RankPod, ...]) -> tuple[str, ...]:
    """Return the nodes to avoid for a rank that did not start: its own, unless every other node fails the same way.

    So it is with an image that nobody can pull, or a volume that nobody can mount; one that its kubelet may not pull is
    on other nodes perhaps. Nor is a node at fault for what runs there for long."""
    if late.reason == NEVER_PULLED:
        lacking = dict.fromkeys(pod.node for pod in pods if pod.reason == NEVER_PULLED and pod.node)
        return tuple(lacking)[:MOST_AVOIDED]
    others = [pod for pod in pods if pod.node != late.node]
    if late.reason:
        alike = _NO_PULL if late.reason in _NO_PULL else (late.reason,)
        is_alone = not others or any(pod.reason not in alike for pod in others)
    elif late.preparing:
        is_alone = False
    else:
        is_alone = late.creating_since_s is None or any(pod.state is not PodState.WAITING for pod in others)
    return _nodes(late.node) if is_alone else ()


def active_deadline_over(now: Situation, now_s: float) -> tuple[str, str] | None:
    """Return reason and sentence if the job has run for as long as it may, else None.

    No wait counts, so only a job with a launch is over; nor does the time in which the pods of an ended attempt go."""
    until_s = runs_until_s(now, now.progress)
    if until_s is None or (now.ended_s or now_s) < until_s:
        return None
    allowed = f"all that spec.activeDeadlineSeconds allows: {SUBMIT_AGAIN} with more time"
    return "DeadlineExceeded", f"ran for {now.terms.active_deadline_s:g} s, {allowed}"


def with_trouble(progress: Progress, now: Situation, now_s: float) -> Progress:
    """Say which rank cannot start, and why; or which is not created, or prepares itself, for a minute.

    Ties: the lowest one. Return `progress` unchanged if there is none."""
    waiting = [pod for pod in of_attempt(now) if pod.state is PodState.WAITING]
    told = [pod for pod in waiting if pod.reason or pod.awaits_volume or _is_slow(pod, now_s)]
    pod = min(told, key=_by_trouble, default=None)
    if pod is None:
        return progress
    said = f": {pod.message}" if pod.message else ""
    if pod.awaits_volume:
        return replace(progress, reason=AWAITS_VOLUME, message=f"{_where(pod)} waits until its volumes are made{said}")
    if pod.reason:
        return replace(progress, reason=pod.reason, message=f"{_where(pod)} cannot start: {pod.reason}{said}")
    if pod.creating_since_s is None:
        most = f"for spec.startDeadlineSeconds ({now.terms.start_deadline_s:g} s) at most"
        why = f"its container {pod.preparing} runs and the main one waits for it, {most}"
        message = f"{_where(pod)}: {why}; see `kubectl logs {pod.name} -c {pod.preparing}`"
        return replace(progress, reason=PREPARING, message=message)
    why = "its container is not created yet (its image is being pulled, or a volume cannot be mounted)"
    message = f"{_where(pod)}: {why}{_claims_text(now)}; see `kubectl describe pod {pod.name}`"
    return replace(progress, reason=NOT_CREATED, message=message)


def _claims_text(now: Situation) -> str:
    """Say which claims may keep ranks on several nodes from starting; "" if no such claim is known."""
    if not now.one_node_claims:
        return ""
    nodes = len({pod.node for pod in of_attempt(now) if pod.node})
    which = f"{claims_text(now.one_node_claims)} {'is' if len(now.one_node_claims) == 1 else 'are'} ReadWriteOnce"
    return f"; its ranks are on {nodes} nodes, and {which}: most volumes of that kind are mounted on one node only"


def _is_slow(pod: RankPod, now_s: float) -> bool:
    since_s = pod.preparing_since_s if pod.creating_since_s is None else pod.creating_since_s
    return since_s is not None and now_s >= since_s + NOT_CREATED_S
