"""In-place resize on simulated kubelets, in virtual time. `tests/e2e/test_tuning.py` has the API server's part."""

from __future__ import annotations

from typing import Any

import pytest

from coda.errors import InvalidInput
from coda_lab.kubelets.behaviour import PREFIX
from coda_lab.kubelets.pods.statuses import status_patch
from coda_lab.kubelets.resize_values import manners_from_node
from tests.lab.kubelets.kubelet_objects import Rig, node_object, pod_json


def sized(name: str, cores: int, *, generation: int = 1, restarts: bool = False, **more: Any) -> dict[str, Any]:
    """A pod whose one container asks for so many cores, and no more."""
    pod = pod_json(name, requests={"cpu": str(cores)}, **more)
    main = pod["spec"]["containers"][0]
    main["resources"]["limits"] = {"cpu": str(cores)}
    if restarts:
        main["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    pod["metadata"]["generation"] = generation
    pod["status"]["qosClass"] = "Guaranteed"
    return pod


def annotated(**notes: str) -> dict[str, Any]:
    node = node_object("n0")
    node["metadata"]["annotations"] = {PREFIX + name.replace("_", "-"): text for name, text in notes.items()}
    return node


def told(rig: Rig, name: str = "p") -> tuple[str, str, str | None]:
    """Cores allocated, cores the container has, and what the kubelet says; of a pod as its status shows it."""
    status = status_patch(rig.pod(name))["status"]
    (main,) = status["containerStatuses"]
    said = [
        f"{each['type']} {each['reason']}".strip()
        for each in status["conditions"]
        if each["type"].startswith("PodResize") and "$patch" not in each
    ]
    return main["allocatedResources"]["cpu"], main["resources"]["limits"]["cpu"], " ".join(said) or None


@pytest.fixture
def rig() -> Rig:
    """A node of 8 cores on which the pod p runs with 2."""
    rig = Rig()
    rig.fleet.node_seen(node_object("n0"))
    rig.fleet.pod_seen(sized("p", 2))
    rig.run_to(1)
    return rig


def test_a_resize_that_fits_is_allocated_at_once_and_applied_a_moment_later(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("p", 6, generation=2))
    assert told(rig) == ("6", "2", "PodResizeInProgress")
    rig.run_to(2)
    assert told(rig) == ("6", "6", None)
    assert status_patch(rig.pod("p"))["status"]["observedGeneration"] == 2


def test_a_pod_that_was_never_resized_tells_nothing_about_resizes(rig: Rig) -> None:
    conditions = status_patch(rig.pod("p"))["status"]["conditions"]
    assert not [each for each in conditions if each["type"].startswith("PodResize")]
    assert told(rig) == ("2", "2", None)


def test_growth_without_room_is_deferred_and_done_once_there_is(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("other", 4, run_seconds="10"))
    rig.run_to(2)
    rig.fleet.pod_seen(sized("p", 6, generation=2))
    rig.run_to(9)
    assert told(rig) == ("2", "2", "PodResizePending Deferred")
    (pending,) = [
        each for each in status_patch(rig.pod("p"))["status"]["conditions"] if each["type"] == "PodResizePending"
    ]
    assert pending["message"].endswith("cpu, requested: 6000, used: 4000, capacity: 8000")
    rig.run_to(30)
    assert told(rig) == ("6", "6", None)


def test_a_shrink_makes_room_for_a_deferred_growth(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("other", 6))
    rig.run_to(2)
    rig.fleet.pod_seen(sized("p", 4, generation=2))
    assert told(rig) == ("2", "2", "PodResizePending Deferred")
    rig.fleet.pod_seen(sized("other", 3, generation=2))
    rig.run_to(3)
    assert told(rig) == ("4", "4", None)


def test_a_deferred_growth_that_was_patched_back_is_never_done(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("other", 6, run_seconds="10"))
    rig.run_to(2)
    rig.fleet.pod_seen(sized("p", 4, generation=2))
    rig.fleet.pod_seen(sized("p", 2, generation=3))
    assert told(rig) == ("2", "2", None)
    rig.run_to(60)
    assert told(rig) == ("2", "2", None)


def test_what_a_resize_took_is_refused_to_others(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("p", 6, generation=2))
    rig.fleet.pod_seen(sized("other", 3))
    rig.run_to(2)
    assert rig.pod("other").reason == "OutOfcpu"


def test_a_change_of_something_else_is_acknowledged_and_nothing_more(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("p", 2, generation=2))
    assert status_patch(rig.pod("p"))["status"]["observedGeneration"] == 2
    assert told(rig) == ("2", "2", None)


def test_more_than_the_node_has_is_infeasible(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("p", 9, generation=2))
    assert told(rig) == ("2", "2", "PodResizePending Infeasible")


def test_a_static_cpu_manager_allows_guaranteed_pods_nothing(rig: Rig) -> None:
    rig.fleet.node_seen(annotated(cpu_manager="static"))
    rig.fleet.pod_seen(sized("p", 1, generation=2))
    rig.run_to(2)
    assert told(rig) == ("2", "2", "PodResizePending Infeasible")
    rig.fleet.pod_seen(sized("p", 2, generation=3))
    assert told(rig) == ("2", "2", None)


def test_other_pods_are_resized_under_a_static_cpu_manager() -> None:
    rig = Rig()
    rig.fleet.node_seen(annotated(cpu_manager="static"))
    burstable = sized("p", 2)
    burstable["status"]["qosClass"] = "Burstable"
    rig.fleet.pod_seen(burstable)
    rig.run_to(1)
    rig.fleet.pod_seen(sized("p", 4, generation=2))
    rig.run_to(2)
    assert told(rig) == ("4", "4", None)


def test_a_node_told_to_defer_does_so_until_it_is_told_otherwise(rig: Rig) -> None:
    rig.fleet.node_seen(annotated(resize="defer"))
    rig.fleet.pod_seen(sized("p", 4, generation=2))
    rig.run_to(60)
    assert told(rig) == ("2", "2", "PodResizePending Deferred")
    rig.fleet.node_seen(annotated(resize_seconds="5"))
    assert told(rig) == ("4", "2", "PodResizeInProgress")
    rig.run_to(66)
    assert told(rig) == ("4", "4", None)


def test_an_error_is_told_and_tried_again(rig: Rig) -> None:
    rig.fleet.node_seen(annotated(resize="error"))
    rig.fleet.pod_seen(sized("p", 4, generation=2))
    rig.run_to(10)
    assert told(rig) == ("4", "2", "PodResizeInProgress Error")
    rig.fleet.node_seen(annotated())
    rig.run_to(12)
    assert told(rig) == ("4", "4", None)


def test_a_node_told_to_hang_acknowledges_nothing(rig: Rig) -> None:
    rig.fleet.node_seen(annotated(resize="hang"))
    rig.fleet.pod_seen(sized("p", 4, generation=2))
    rig.run_to(10)
    assert told(rig) == ("2", "2", None)
    assert status_patch(rig.pod("p"))["status"]["observedGeneration"] == 1


def test_an_old_kubelet_does_not_say_what_containers_have(rig: Rig) -> None:
    rig.fleet.node_seen(annotated(resize="unsupported"))
    (main,) = status_patch(rig.pod("p"))["status"]["containerStatuses"]
    assert "resources" not in main
    assert "allocatedResources" not in main


@pytest.mark.parametrize(("restarts", "count"), [(True, 1), (False, 0)])
def test_a_container_is_restarted_where_its_policy_says_so(*, restarts: bool, count: int) -> None:
    rig = Rig()
    rig.fleet.pod_seen(sized("p", 2, restarts=restarts))
    rig.run_to(1)
    rig.fleet.pod_seen(sized("p", 4, generation=2, restarts=restarts))
    rig.run_to(2)
    (main,) = status_patch(rig.pod("p"))["status"]["containerStatuses"]
    assert main["restartCount"] == count


def test_a_pod_ends_in_its_time_though_it_was_resized_meanwhile() -> None:
    rig = Rig()
    rig.fleet.pod_seen(sized("p", 2, run_seconds="10"))
    rig.run_to(9.9)
    rig.fleet.pod_seen(sized("p", 4, generation=2, run_seconds="10"))
    rig.run_to(20)
    assert rig.pod("p").stage.name == "ENDED"


def test_a_silent_machine_resizes_once_it_is_back(rig: Rig) -> None:
    rig.fleet.node_seen(node_object("n0", lost=True))
    rig.fleet.pod_seen(sized("p", 4, generation=2))
    rig.run_to(60)
    assert rig.pod("p").allocated["main"].requests == {"cpu": "2"}
    rig.fleet.node_seen(node_object("n0"))
    rig.run_to(61)
    assert told(rig) == ("4", "4", None)


def test_a_new_process_takes_over_what_is_allocated_and_goes_on(rig: Rig) -> None:
    rig.fleet.pod_seen(sized("p", 6, generation=2))
    shown = sized("p", 6, generation=2) | {"status": status_patch(rig.pod("p"))["status"]}
    after = Rig()
    after.fleet.pods_listed([shown])
    after.run_to(1)
    assert told(after) == ("6", "6", None)
    after.fleet.pod_seen(sized("big", 3))
    after.run_to(2)
    assert after.pod("big").reason == "OutOfcpu"


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        ({"resize": "dance"}, "sim.coda.scheduler/resize is 'dance'"),
        ({"cpu_manager": "magic"}, "sim.coda.scheduler/cpu-manager is 'magic'"),
        ({"resize_seconds": "soon"}, "sim.coda.scheduler/resize-seconds"),
    ],
)
def test_a_misspelt_annotation_is_told(notes: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        manners_from_node(annotated(**notes))
