"""Pod JSON as kubelets really write it -> how far a rank came, and whose fault it is."""

from __future__ import annotations

from typing import Any

import pytest

from coda.lifecycle import PodState
from coda_operator.view.rank_pods import rank_pod_from_json

NOW_S = 1000.0


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    labels = {"coda.scheduler/attempt": "2", "coda.scheduler/rank": "5"}
    return {
        "metadata": {"name": "j-2-5", "uid": "u", "labels": labels, **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "side"}]},
        "status": status,
    }


MARKED = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def main(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "side", "state": {"running": {}}}, {"name": "main", "state": state}]


@pytest.mark.parametrize(
    ("status", "state", "disrupted", "reason"),
    [
        pytest.param({}, PodState.WAITING, False, "", id="no status yet"),
        pytest.param(
            {"containerStatuses": main({"waiting": {"reason": "ContainerCreating"}})},
            PodState.WAITING,
            False,
            "",
            id="being created",
        ),
        pytest.param(
            {"containerStatuses": main({"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}})},
            PodState.WAITING,
            False,
            "ImagePullBackOff",
            id="image cannot be pulled",
        ),
        pytest.param({"containerStatuses": main({"running": {}})}, PodState.STARTED, False, "", id="runs"),
        pytest.param(
            {"phase": "Running", "containerStatuses": main({"terminated": {"exitCode": 0, "reason": "Completed"}})},
            PodState.SUCCEEDED,
            False,
            "Completed",
            id="main is done while a sidecar goes on",
        ),
        pytest.param(
            {"phase": "Failed", "containerStatuses": main({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})},
            PodState.FAILED,
            False,
            "OOMKilled",
            id="out of memory is the job's own",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource"},
            PodState.FAILED,
            True,
            "OutOfcpu",
            id="refused by its kubelet",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "conditions": [{"type": "DisruptionTarget", "status": "True"}],
                "containerStatuses": main({"terminated": {"exitCode": 143, "reason": "Error"}}),
            },
            PodState.FAILED,
            True,
            "Error",
            id="evicted",
        ),
        pytest.param(
            {
                "phase": "Succeeded",
                "conditions": [MARKED | {"reason": "TerminationByKubelet"}],
                "containerStatuses": main({"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:01Z"}}),
            },
            PodState.FAILED,
            True,
            "",
            id="evicted, and polite about it",
        ),
        pytest.param(
            {
                "phase": "Succeeded",
                "conditions": [MARKED | {"reason": "TerminationByKubelet"}],
                "containerStatuses": main({"terminated": {"exitCode": 0, "finishedAt": "2025-12-31T23:59:00Z"}}),
            },
            PodState.SUCCEEDED,
            False,
            "",
            id="evicted when it had long succeeded",
        ),
        pytest.param(
            {"phase": "Running", "conditions": [MARKED], "containerStatuses": main({"terminated": {"exitCode": 137}})},
            PodState.FAILED,
            True,
            "",
            id="being evicted",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "containerStatuses": main({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}),
            },
            PodState.FAILED,
            True,
            "ContainerStatusUnknown",
            id="its node was restarted",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "side", "state": {"terminated": {"exitCode": 1}}},
                    {"name": "main", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                ],
            },
            PodState.SUCCEEDED,
            False,
            "Completed",
            id="main is done, a sidecar failed",
        ),
        pytest.param({"phase": "Succeeded"}, PodState.SUCCEEDED, False, "", id="done, and nothing else is said"),
        pytest.param(
            {
                "phase": "Failed",
                "initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 2}}}],
                "containerStatuses": main({"waiting": {"reason": "PodInitializing"}}),
            },
            PodState.FAILED,
            False,
            "its container fetch ended with exit code 2",
            id="an init container failed: the job's own",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "reason": "Evicted",
                "conditions": [MARKED],
                "initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 137}}}],
            },
            PodState.FAILED,
            True,
            "Evicted",
            id="evicted while an init container ran",
        ),
        pytest.param(
            {
                "initContainerStatuses": [{"name": "fetch", "state": {"waiting": {"reason": "ErrImagePull"}}}],
                "containerStatuses": main({"waiting": {"reason": "PodInitializing"}}),
            },
            PodState.WAITING,
            False,
            "ErrImagePull",
            id="the image of an init container cannot be pulled",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"},
            PodState.FAILED,
            False,
            "DeadlineExceeded",
            id="the template's own deadline",
        ),
    ],
)
def test_how_far_a_rank_came(status: dict[str, Any], state: PodState, disrupted: bool, reason: str) -> None:
    seen = rank_pod_from_json(pod(status), now_s=NOW_S)
    assert (seen.state, seen.disrupted, seen.reason) == (state, disrupted, reason)
    assert (seen.attempt, seen.rank) == (2, 5)


@pytest.mark.parametrize(("is_bound", "reason"), [(False, "Unschedulable"), (True, "")])
def test_only_of_a_pod_without_a_node_is_it_said_that_it_does_not_fit(is_bound: bool, reason: str) -> None:
    """kube-scheduler may write a refusal after the binding."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/8 nodes"}
    item = pod({"conditions": [refused]})
    if not is_bound:
        del item["spec"]["nodeName"]
    seen = rank_pod_from_json(item, now_s=NOW_S)
    assert (seen.state, seen.disrupted, seen.reason) == (PodState.WAITING, False, reason)


def test_an_error_of_kube_scheduler_is_no_refusal_but_its_words_are_kept() -> None:
    said = 'running "Filter": Post https://coda-extender: context deadline exceeded'
    error = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": said}
    item = pod({"conditions": [error]})
    del item["spec"]["nodeName"]
    seen = rank_pod_from_json(item, now_s=NOW_S)
    assert (seen.reason, seen.message, seen.unschedulable_since_s) == ("", said, None)


def test_labels_that_were_tampered_with_belong_to_no_attempt() -> None:
    seen = rank_pod_from_json(pod({}, labels={"coda.scheduler/rank": "five"}), now_s=NOW_S)
    assert (seen.attempt, seen.rank) == (-1, -1)


@pytest.mark.parametrize(
    ("finished", "state", "disrupted"),
    [
        pytest.param("2026-01-01T05:00:00Z", PodState.FAILED, True, id="it ran for as long as it existed: stopped"),
        pytest.param("2026-01-01T04:50:00Z", PodState.SUCCEEDED, False, id="it existed for longer than it ran: done"),
    ],
)
def test_an_exit_code_of_zero_after_a_deletion_is_no_success(finished: str, state: PodState, disrupted: bool) -> None:
    """Nobody saw the end. The clock of the node is five hours ahead of the API server's."""
    status = {
        "phase": "Succeeded",
        "startTime": "2026-01-01T04:00:02Z",
        "containerStatuses": main({"terminated": {"exitCode": 0, "finishedAt": finished}}),
    }
    deleted = pod(
        status,
        creationTimestamp="2025-12-31T23:00:00Z",
        deletionTimestamp="2026-01-01T00:00:30Z",
        deletionGracePeriodSeconds=30,
        finalizers=["a/b", "coda.scheduler/rank"],
    )
    seen = rank_pod_from_json(deleted, now_s=NOW_S)
    assert (seen.state, seen.disrupted) == (state, disrupted)
    assert (seen.gone_by_s, seen.finalizers) == (NOW_S + 30, ("a/b",))
    assert seen.held


@pytest.mark.parametrize(
    ("own_s", "deleted_with_s", "shorten_to_s"),
    [
        pytest.param(30, 30, 0, id="its own"),
        pytest.param(30, 31, 30, id="longer"),
        pytest.param(30, 5, 0, id="shorter"),
        pytest.param(0, 1, 0, id="none, which is a second"),
        pytest.param(0, 600, 1, id="longer than none"),
        pytest.param(30, None, 0, id="not deleted"),
    ],
)
def test_a_longer_grace_period_than_that_of_the_spec_is_to_be_shortened(
    own_s: int, deleted_with_s: int | None, shorten_to_s: int
) -> None:
    deletion = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": deleted_with_s}
    asked = pod({}, **(deletion if deleted_with_s is not None else {}))
    asked["spec"]["terminationGracePeriodSeconds"] = own_s
    seen = rank_pod_from_json(asked, now_s=NOW_S)
    assert seen.shorten_to_s == shorten_to_s
    if shorten_to_s:
        asked["metadata"]["deletionGracePeriodSeconds"] = shorten_to_s
        gone_by_s = rank_pod_from_json(asked, now_s=NOW_S + 7, before=seen).gone_by_s
        assert gone_by_s == NOW_S + min(deleted_with_s or 0, 7 + shorten_to_s)


def test_what_was_seen_first_stays_true() -> None:
    """The end before the deletion, or the deletion before the end: no clock is asked."""
    done = {"phase": "Succeeded", "containerStatuses": main({"terminated": {"exitCode": 0}})}
    leaving = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    ended = rank_pod_from_json(pod(done), now_s=NOW_S)
    assert rank_pod_from_json(pod(done, **leaving), now_s=NOW_S, before=ended).state is PodState.SUCCEEDED
    started = rank_pod_from_json(pod({"containerStatuses": main({"running": {}})}, **leaving), now_s=NOW_S)
    stopped = rank_pod_from_json(pod(done, **leaving), now_s=NOW_S, before=started)
    assert (stopped.state, stopped.disrupted) == (PodState.FAILED, True)


def test_a_reboot_that_the_runtime_reports_is_not_the_jobs_fault() -> None:
    lost = {"phase": "Failed", "containerStatuses": main({"terminated": {"exitCode": 255, "reason": "Unknown"}})}
    assert rank_pod_from_json(pod(lost), now_s=NOW_S).disrupted
    own = {"phase": "Failed", "containerStatuses": main({"terminated": {"exitCode": 255, "reason": "Error"}})}
    assert not rank_pod_from_json(pod(own), now_s=NOW_S).disrupted


@pytest.mark.parametrize(
    ("reason", "message", "disrupted"),
    [
        pytest.param("Evicted", "The node was low on resource: memory.", True, id="pressure of the node"),
        pytest.param("Evicted", 'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".', False, id="own limit"),
        pytest.param("Evicted", "Pod ephemeral local storage usage exceeds the total limit", False, id="own total"),
        pytest.param("Terminated", "Pod was terminated in response to imminent node shutdown.", True, id="shutdown"),
        pytest.param("NodeLost", "Node n1 which was running pod j-2-5 is unresponsive", True, id="node lost"),
    ],
)
def test_whose_fault_it_is_that_kubernetes_ended_a_pod(reason: str, message: str, disrupted: bool) -> None:
    ended = main({"terminated": {"exitCode": 137, "reason": "Error"}})
    status = {"phase": "Failed", "reason": reason, "message": message, "containerStatuses": ended}
    assert rank_pod_from_json(pod(status), now_s=NOW_S).disrupted is disrupted


def test_a_pod_that_was_evicted_says_what_its_main_container_had_used_up() -> None:
    said = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 91244Ki. "
    used = "Container train was using 90Gi, request is 8Gi, has larger consumption of memory. "
    status = {"phase": "Failed", "reason": "Evicted", "message": said + used}
    evicted = pod(status)
    assert rank_pod_from_json(evicted, now_s=NOW_S).overuse == ""  # a sidecar of that name
    evicted["spec"]["containers"] = [{"name": "train"}]
    known = rank_pod_from_json(evicted, now_s=NOW_S)
    assert (known.overuse, known.disrupted) == ("memory", True)


def test_how_long_a_pod_is_unschedulable_is_measured_by_our_own_clock() -> None:
    """The scheduler's clock may be seconds apart."""
    condition = {"type": "PodScheduled", "reason": "Unschedulable", "lastTransitionTime": "1999-01-01T00:00:00Z"}
    first = rank_pod_from_json(pod({"conditions": [condition]}), now_s=NOW_S)
    assert first.unschedulable_since_s == NOW_S
    later = rank_pod_from_json(pod({"conditions": [condition]}), now_s=NOW_S + 3, before=first)
    assert later.unschedulable_since_s == NOW_S
    placed = rank_pod_from_json(pod({}), now_s=NOW_S + 4, before=later)
    assert placed.unschedulable_since_s is None
    namesake = rank_pod_from_json(pod({"conditions": [condition]}, uid="other"), now_s=NOW_S + 5, before=later)
    assert namesake.unschedulable_since_s == NOW_S + 5


def test_a_pod_that_somebody_gates_names_the_gates() -> None:
    """Kubernetes does not: a webhook may leave dry runs alone, and gate the pods."""
    said = "Scheduling is blocked due to non-empty scheduling gates"
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": said}
    gated = pod({"conditions": [condition]})
    del gated["spec"]["nodeName"]
    gated["spec"]["schedulingGates"] = [{"name": "a.example.com/b"}, {"name": "c"}]
    seen = rank_pod_from_json(gated, now_s=NOW_S)
    assert (seen.reason, seen.message) == ("SchedulingGated", "its scheduling gates are a.example.com/b and c")
    del gated["spec"]["schedulingGates"]  # nobody rewrites the condition at once
    seen = rank_pod_from_json(gated, now_s=NOW_S)
    assert (seen.reason, seen.message) == ("", "")


CREATING = main({"waiting": {"reason": "ContainerCreating"}})[1:]
INITIALIZING = main({"waiting": {"reason": "PodInitializing"}})[1:]
RUNS: dict[str, Any] = {"state": {"running": {}}}


@pytest.mark.parametrize(
    ("status", "is_created_now"),
    [
        pytest.param({}, False, id="its kubelet has not taken it"),
        pytest.param({"containerStatuses": CREATING}, True, id="being created"),
        pytest.param({"containerStatuses": main({"running": {}})}, False, id="runs"),
        pytest.param(
            {"containerStatuses": INITIALIZING, "initContainerStatuses": [INITIALIZING[0] | {"name": "fetch"}]},
            True,
            id="not even its init container is there",
        ),
        pytest.param(
            {"containerStatuses": INITIALIZING, "initContainerStatuses": [RUNS | {"name": "fetch", "started": True}]},
            False,
            id="its init container runs",
        ),
        pytest.param(
            {"containerStatuses": INITIALIZING, "initContainerStatuses": [RUNS | {"name": "proxy", "started": True}]},
            True,
            id="its sidecar runs",
        ),
        pytest.param(
            {"containerStatuses": INITIALIZING, "initContainerStatuses": [RUNS | {"name": "proxy", "started": False}]},
            False,
            id="its sidecar is not ready for it",
        ),
    ],
)
def test_since_when_a_container_is_created_is_by_our_own_clock(status: dict[str, Any], is_created_now: bool) -> None:
    item = pod(status)
    item["spec"]["initContainers"] = [{"name": "fetch"}, {"name": "proxy", "restartPolicy": "Always"}]
    first = rank_pod_from_json(item, now_s=NOW_S)
    assert first.creating_since_s == (NOW_S if is_created_now else None)
    started = {entry["name"] for entry in status.get("initContainerStatuses", ()) if entry.get("started") is not None}
    preparing = "".join(started) if not is_created_now else ""
    assert (first.preparing, first.preparing_since_s) == (preparing, NOW_S if preparing else None)
    assert (first.reason, first.state is PodState.STARTED) == ("", "running" in str(status.get("containerStatuses")))
    later = rank_pod_from_json(item, now_s=NOW_S + 9, before=first)
    assert later.creating_since_s == first.creating_since_s
    other = rank_pod_from_json(item | {"metadata": item["metadata"] | {"uid": "v"}}, now_s=NOW_S + 9, before=first)
    assert other.creating_since_s == (NOW_S + 9 if is_created_now else None)
