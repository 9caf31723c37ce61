"""Lost nodes and a restarted process: what a kubelet does about what it missed."""

from __future__ import annotations

import pytest

from coda_kube.objects.quantities import time_from_seconds
from coda_lab.kubelets.machine import Stage
from coda_lab.kubelets.pods.statuses import status_patch
from tests.lab.kubelets.kubelet_objects import T0, Rig, node_object, pod_json


def silenced(rig: Rig) -> Rig:
    rig.fleet.node_seen(node_object("n0", lost=True))
    rig.told.clear()
    return rig


def test_a_silent_machine_starts_nothing_and_catches_up_when_it_returns() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("delayed", start_delay_seconds="5"))
    silenced(rig)
    rig.fleet.pod_seen(pod_json("late"))
    rig.run_to(100)
    assert rig.told == []
    assert (rig.pod("delayed").stage, rig.pod("late").stage) == (Stage.CREATING, Stage.ARRIVED)

    rig.fleet.node_seen(node_object("n0"))
    rig.run_to(101)
    assert rig.returned == ["n0"]
    assert (rig.pod("delayed").stage, rig.pod("late").stage) == (Stage.RUNNING, Stage.RUNNING)
    assert rig.pod("delayed").started_s == T0 + 100


def test_a_machine_given_up_while_it_lives_says_so_at_once() -> None:
    rig = Rig()
    rig.fleet.node_seen(node_object("n0"))
    assert rig.returned == []
    rig.fleet.node_seen(node_object("n0", ready="Unknown"))
    assert rig.returned == ["n0"]
    silenced(rig).fleet.node_seen(node_object("n0", lost=True, ready="Unknown"))
    assert rig.returned == ["n0"]


def test_containers_on_a_silent_machine_end_when_they_would_have_and_that_is_told_later() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", run_seconds="10", start_delay_seconds="0"))
    rig.run_to(1)
    silenced(rig)
    rig.run_to(100)
    revision = rig.pod("p").revision
    rig.told.clear()
    rig.fleet.node_seen(node_object("n0"))
    assert rig.told == [("p", "ENDED")]
    assert rig.pod("p").ended_s == T0 + 10
    assert rig.pod("p").revision == revision


def test_running_pods_are_told_again_because_the_node_controller_called_them_not_ready() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p"))
    rig.run_to(1)
    rig.pod("p").told = rig.pod("p").revision
    silenced(rig)
    rig.fleet.node_seen(node_object("n0"))
    assert rig.pod("p").told < rig.pod("p").revision


def test_deletions_asked_for_in_silence_are_done_on_return() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p"))
    rig.run_to(1)
    silenced(rig)
    rig.fleet.pod_seen(pod_json("p", deleted_with_grace_s=30))
    rig.run_to(100)
    assert (rig.pod("p").stage, rig.pod("p").removal_due) == (Stage.RUNNING, False)

    rig.fleet.node_seen(node_object("n0"))
    rig.run_to(101)
    assert (rig.pod("p").exit_code, rig.pod("p").removal_due) == (143, True)


def test_a_reboot_ends_running_containers_as_containerd_says_and_tells_it_afterwards() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("runs", run_seconds="1000"))
    rig.fleet.pod_seen(pod_json("done", run_seconds="1"))
    rig.fleet.pod_seen(pod_json("begins", start_delay_seconds="20"))
    rig.run_to(10)
    rig.told.clear()
    rig.fleet.node_seen(node_object("n0", lost="reboot"))
    rig.run_to(30)
    assert rig.fleet.machines["n0"].silent
    rig.told.clear()
    rig.fleet.node_seen(node_object("n0"))
    rig.run_to(31)
    assert (rig.pod("runs").stage, rig.pod("runs").ended_s) == (Stage.ENDED, T0 + 10)
    assert rig.pod("begins").stage is Stage.RUNNING
    assert ("runs", "ENDED") in rig.told
    ended = status_patch(rig.pod("runs"))["status"]
    state = ended["containerStatuses"][0]["state"]["terminated"]
    assert (ended["phase"], state["exitCode"], state["reason"]) == ("Failed", 255, "Unknown")
    kept = status_patch(rig.pod("done"))["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (kept["exitCode"], kept["reason"]) == (0, "Completed")


def test_what_returns_is_admitted_in_order_of_arrival() -> None:
    rig = silenced(Rig())
    for name in ("b", "a"):
        rig.fleet.pod_seen(pod_json(name, requests={"cpu": "5"}))
    rig.fleet.node_seen(node_object("n0"))
    rig.run_to(1)
    assert (rig.pod("b").stage, rig.pod("a").stage) == (Stage.RUNNING, Stage.REFUSED)


def test_a_deleted_node_is_cut_off_until_it_is_made_again() -> None:
    rig = Rig("n0", "n1")
    rig.fleet.nodes_listed([node_object("n0")])
    rig.fleet.pod_seen(pod_json("p", node="n1"))
    rig.run_to(10)
    assert rig.pod("p").stage is Stage.ARRIVED
    rig.fleet.node_seen(node_object("n1"))
    rig.run_to(11)
    assert rig.pod("p").stage is Stage.RUNNING


def running_status(started_s: float, *, ended_s: float | None = None) -> dict[str, object]:
    state: dict[str, object] = {"running": {"startedAt": time_from_seconds(started_s)}}
    if ended_s is not None:
        times = {"startedAt": time_from_seconds(started_s), "finishedAt": time_from_seconds(ended_s)}
        state = {"terminated": times | {"exitCode": 4}}
    return {
        "phase": "Running" if ended_s is None else "Failed",
        "startTime": time_from_seconds(started_s),
        "podIP": "10.128.0.9",
        "containerStatuses": [{"name": "main", "state": state}],
    }


def test_a_restarted_process_lets_pods_run_to_their_original_end() -> None:
    rig = Rig()
    rig.fleet.pods_listed([pod_json("p", run_seconds="30", status=running_status(T0 - 20))])
    rig.run_to(9)
    assert rig.told == []
    rig.run_to(11)
    assert rig.told == [("p", "ENDED")]
    assert rig.pod("p").ended_s == pytest.approx(T0 + 10)


def test_a_restarted_process_counts_what_runs_before_it_admits_what_is_new() -> None:
    rig = Rig()
    rig.fleet.pods_listed(
        [
            pod_json("a-new", requests={"cpu": "6"}, created="2026-01-01T00:00:00Z"),
            pod_json("b-running", requests={"cpu": "6"}, created="2026-01-02T00:00:00Z", status=running_status(T0)),
        ]
    )
    assert (rig.pod("a-new").stage, rig.pod("b-running").stage) == (Stage.REFUSED, Stage.RUNNING)


def test_new_pods_of_a_list_are_admitted_by_age() -> None:
    rig = Rig()
    rig.fleet.pods_listed(
        [
            pod_json("a", requests={"cpu": "6"}, created="2026-01-02T00:00:00Z"),
            pod_json("b", requests={"cpu": "6"}, created="2026-01-01T00:00:00Z"),
        ]
    )
    assert (rig.pod("a").stage, rig.pod("b").stage) == (Stage.REFUSED, Stage.CREATING)


def test_a_restarted_process_neither_restarts_nor_rewrites_what_has_ended() -> None:
    rig = Rig()
    rig.fleet.pods_listed([pod_json("p", requests={"cpu": "8"}, status=running_status(T0 - 9, ended_s=T0 - 4))])
    rig.fleet.pod_seen(pod_json("next", requests={"cpu": "8"}))
    rig.run_to(10)
    pod = rig.pod("p")
    assert (pod.stage, pod.exit_code, pod.revision) == (Stage.ENDED, 4, 0)
    assert rig.pod("next").stage is Stage.RUNNING


def test_a_pod_missing_from_a_new_list_is_gone() -> None:
    rig = Rig()
    rig.fleet.pods_listed([pod_json("p", requests={"cpu": "8"}), pod_json("q")])
    rig.fleet.pods_listed([pod_json("q"), pod_json("next", requests={"cpu": "8"})])
    assert rig.fleet.pod("ns", "p") is None
    assert rig.pod("next").stage is Stage.CREATING
