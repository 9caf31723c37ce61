from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.quantities import time_from_seconds
from coda_lab.kubelets.pods.statuses import status_patch
from tests.lab.kubelets.kubelet_objects import T0, Rig, pod_json

INITS = {"initContainers": [{"name": "prep", "image": "p"}, {"name": "side", "image": "s", "restartPolicy": "Always"}]}


def status_after(seconds: float, *, spec: dict[str, Any] | None = None, **annotations: Any) -> dict[str, Any]:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", spec=spec, **annotations))
    rig.run_to(seconds)
    status: dict[str, Any] = status_patch(rig.pod("p"))["status"]
    return status


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def states(status: dict[str, Any], kind: str = "containerStatuses") -> dict[str, Any]:
    return {each["name"]: each["state"] for each in status[kind]}


def test_the_patch_names_the_pod_by_uid() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", uid="u-1"))
    assert status_patch(rig.pod("p"))["metadata"] == {"uid": "u-1"}


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({"never_start": "true"}, "ContainerCreating"),
        ({"start_delay_seconds": "100"}, "ContainerCreating"),
        ({"image_pull": "fail"}, "ImagePullBackOff"),
    ],
)
def test_what_has_not_started_is_pending_and_says_why(annotations: dict[str, Any], reason: str) -> None:
    status = status_after(10, **annotations)
    assert status["phase"] == "Pending"
    assert states(status)["main"]["waiting"]["reason"] == reason
    assert conditions(status)["Ready"] == ("False", "ContainersNotReady")


def test_a_running_pod_is_ready_and_its_earlier_reasons_are_taken_away() -> None:
    status = status_after(10, start_delay_seconds="4")
    assert status["phase"] == "Running"
    assert states(status) == {"main": {"running": {"startedAt": time_from_seconds(T0 + 4)}}}
    assert conditions(status) == {
        "PodReadyToStartContainers": ("True", None),
        "Initialized": ("True", None),
        "ContainersReady": ("True", None),
        "Ready": ("True", None),
    }
    assert status["podIPs"] == [{"ip": status["podIP"]}]


@pytest.mark.parametrize(
    ("exit_code", "phase", "reason", "ready_reason"),
    [("0", "Succeeded", "Completed", "PodCompleted"), ("9", "Failed", "Error", "PodFailed")],
)
def test_the_main_containers_exit_code_decides_the_phase(
    exit_code: str, phase: str, reason: str, ready_reason: str
) -> None:
    spec = {"containers": [{"name": "main", "image": "m"}, {"name": "extra", "image": "e"}]}
    status = status_after(10, spec=spec, run_seconds="3", start_delay_seconds="1", exit_code=exit_code)
    ended = states(status)
    assert status["phase"] == phase
    assert (ended["main"]["terminated"]["exitCode"], ended["main"]["terminated"]["reason"]) == (int(exit_code), reason)
    assert ended["extra"]["terminated"]["exitCode"] == 0
    assert ended["main"]["terminated"]["finishedAt"] == time_from_seconds(T0 + 4)
    assert conditions(status)["Ready"] == ("False", ready_reason)
    assert conditions(status)["Initialized"] == ("True", None)


def test_a_refused_pod_shows_the_kubelets_words_and_no_containers() -> None:
    rig = Rig(allocatable={"cpu": 1000, "pods": 110})
    rig.fleet.pod_seen(pod_json("p", requests={"cpu": "2"}))
    assert status_patch(rig.pod("p"))["status"] == {
        "observedGeneration": 0,
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000",
        "startTime": time_from_seconds(T0),
    }


def test_init_containers_have_ended_and_sidecars_live_with_the_main_container() -> None:
    before = status_after(1, spec=INITS, start_delay_seconds="2")
    during = status_after(3, spec=INITS, start_delay_seconds="2", run_seconds="5")
    after = status_after(9, spec=INITS, start_delay_seconds="2", run_seconds="5", exit_code="1")

    assert states(before)["main"]["waiting"]["reason"] == "PodInitializing"
    assert conditions(before)["Initialized"] == ("False", "ContainersNotInitialized")
    assert states(during, "initContainerStatuses")["prep"]["terminated"]["exitCode"] == 0
    assert "running" in states(during, "initContainerStatuses")["side"]
    assert states(after, "initContainerStatuses")["side"]["terminated"]["exitCode"] == 0
