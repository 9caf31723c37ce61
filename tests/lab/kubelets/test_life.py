"""A pod's life on a machine that can be reached, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda_kube.objects.quantities import time_from_seconds
from coda_lab.kubelets.machine import Stage
from tests.lab.kubelets.kubelet_objects import T0, Rig, pod_json


def test_a_pod_starts_runs_its_time_and_ends() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", run_seconds="10", start_delay_seconds="2", exit_code="3"))
    rig.run_to(60)
    pod = rig.pod("p")
    assert rig.told == [("p", "CREATING"), ("p", "RUNNING"), ("p", "ENDED")]
    assert (pod.admitted_s, pod.started_s, pod.ended_s, pod.exit_code) == (T0, T0 + 2, T0 + 12, 3)


def test_a_run_counts_from_the_placement_where_that_is_asked_for() -> None:
    rig = Rig()
    for name in ("p", "late", "unknown"):
        rig.fleet.pod_seen(pod_json(name, run_seconds="10", start_delay_seconds="2", run_from="placement"))
    rig.fleet.pod_seen(pod_json("usual", run_seconds="10", start_delay_seconds="2"))
    assert rig.asked == ["p", "late", "unknown"]
    rig.run_to(1)
    rig.fleet.placed(rig.pod("p"), T0 - 3)
    rig.run_to(3)
    rig.fleet.placed(rig.pod("late"), T0 - 30)  # its time was over before it had started
    rig.run_to(60)
    ends_s = {name: rig.pod(name).ended_s - T0 for name in ("p", "late", "unknown", "usual")}
    assert ends_s == {"p": 7, "late": 2, "unknown": 12, "usual": 12}


def test_the_run_of_a_cpu_job_counts_from_what_its_pod_says() -> None:
    rig = Rig()
    pod = pod_json("p", run_seconds="10", start_delay_seconds="2", run_from="placement")
    pod["metadata"]["annotations"]["coda.scheduler/planned-time"] = time_from_seconds(T0 - 3)
    rig.fleet.pod_seen(pod)
    rig.run_to(60)
    assert rig.asked == []
    assert rig.pod("p").ended_s == T0 + 7


def test_a_quick_start_is_one_write() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p"))
    rig.run_to(1)
    assert rig.told == [("p", "RUNNING")]


def test_over_commit_is_refused_in_order_of_arrival_and_freed_by_the_end() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("first", requests={"nvidia.com/gpu": "6"}, run_seconds="5"))
    rig.fleet.pod_seen(pod_json("second", requests={"nvidia.com/gpu": "3"}))
    rig.run_to(6)
    rig.fleet.pod_seen(pod_json("third", requests={"nvidia.com/gpu": "8"}))
    rig.run_to(7)
    second = rig.pod("second")
    assert (second.stage, second.reason) == (Stage.REFUSED, "OutOfnvidia.com/gpu")
    assert second.message is not None
    assert second.message.endswith("nvidia.com/gpu, requested: 3, used: 6, capacity: 8")
    assert rig.pod("third").stage is Stage.RUNNING


def test_a_refused_pod_holds_nothing() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("refused", requests={"cpu": "8"}, refuse="NodeAffinity"))
    rig.fleet.pod_seen(pod_json("other", requests={"cpu": "8"}))
    rig.run_to(1)
    assert rig.pod("refused").reason == "NodeAffinity"
    assert rig.pod("other").stage is Stage.RUNNING


def test_an_unreadable_annotation_refuses_the_pod_and_says_which() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", run_seconds="soon"))
    assert rig.pod("p").reason == "InvalidSimulationAnnotation"
    assert "sim.coda.scheduler/run-seconds is 'soon'" in (rig.pod("p").message or "")


def test_an_image_that_cannot_be_pulled_backs_off_for_ever() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", image_pull="fail"))
    rig.run_to(10_000)
    assert rig.told == [("p", "PULL_FAILED"), ("p", "PULL_BACKING_OFF")]


def test_a_container_that_never_starts_stays_being_created_and_holds_its_share() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", never_start="true", requests={"cpu": "8"}))
    rig.run_to(10_000)
    rig.fleet.pod_seen(pod_json("other", requests={"cpu": "1"}))
    assert rig.told[0] == ("p", "CREATING")
    assert rig.pod("p").stage is Stage.CREATING
    assert rig.pod("other").reason == "OutOfcpu"


@pytest.mark.parametrize(
    ("grace_s", "stop_seconds", "stopped_after_s", "exit_code"),
    [
        pytest.param(30, "2", 2.0, 143, id="it obeys the signal"),
        pytest.param(1, "2", 1.0, 137, id="it is killed when the grace is over"),
        pytest.param(0, "2", 0.0, 137, id="no grace"),
    ],
)
def test_a_deleted_pod_stops_and_then_goes(
    grace_s: int, stop_seconds: str, stopped_after_s: float, exit_code: int
) -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", stop_seconds=stop_seconds))
    rig.run_to(10)
    rig.fleet.pod_seen(pod_json("p", deleted_with_grace_s=grace_s))
    rig.run_to(60)
    pod = rig.pod("p")
    assert (pod.stage, pod.ended_s, pod.exit_code) == (Stage.ENDED, T0 + 10 + stopped_after_s, exit_code)
    assert pod.removal_due


def test_a_second_deletion_with_less_grace_counts() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", stop_seconds="100"))
    rig.run_to(1)
    rig.fleet.pod_seen(pod_json("p", deleted_with_grace_s=50))
    rig.run_to(2)
    rig.fleet.pod_seen(pod_json("p", deleted_with_grace_s=3))
    rig.run_to(60)
    assert rig.pod("p").ended_s == T0 + 5


def test_a_pod_that_ends_by_itself_while_it_is_being_stopped_keeps_its_exit_code() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", run_seconds="10", stop_seconds="30"))
    rig.run_to(9)
    rig.fleet.pod_seen(pod_json("p", deleted_with_grace_s=30))
    rig.run_to(60)
    pod = rig.pod("p")
    assert (pod.exit_code, pod.removal_due) == (0, True)
    assert pod.ended_s == pytest.approx(T0 + 10.005)


@pytest.mark.parametrize("annotations", [{"never_start": "true"}, {"image_pull": "fail"}, {"start_delay_seconds": "9"}])
def test_what_has_not_started_goes_at_once_and_never_starts(annotations: dict[str, Any]) -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", requests={"cpu": "8"}, **annotations))
    rig.run_to(2)
    deleted = pod_json("p", requests={"cpu": "8"}, deleted_with_grace_s=30, **annotations)
    rig.fleet.pod_seen(deleted)
    assert rig.pod("p").removal_due
    rig.fleet.pod_seen(pod_json("next", requests={"cpu": "8"}))
    rig.fleet.pod_seen(deleted)  # a finalizer keeps the object: nothing more happens to it
    rig.run_to(60)
    assert rig.pod("next").stage is Stage.RUNNING
    assert rig.pod("p").stage is not Stage.RUNNING


def test_a_pod_that_arrives_deleted_is_removed_and_not_started() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", deleted_with_grace_s=30))
    rig.run_to(60)
    assert rig.told == [("p", "ARRIVED")]
    assert rig.pod("p").removal_due


def test_a_force_deleted_pod_frees_its_share_and_its_name() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", uid="old", requests={"cpu": "8"}, run_seconds="20"))
    rig.run_to(1)
    rig.fleet.pod_gone("old")
    rig.fleet.pod_seen(pod_json("p", uid="new", requests={"cpu": "8"}))
    rig.run_to(60)
    assert (rig.pod("p").uid, rig.pod("p").stage) == ("new", Stage.RUNNING)
    assert rig.told == [("p", "RUNNING"), ("p", "RUNNING")]


def test_pods_of_other_nodes_are_none_of_ours() -> None:
    rig = Rig("n0")
    rig.fleet.pod_seen(pod_json("p", node="somebody-elses"))
    assert rig.fleet.pod("ns", "p") is None


def test_pods_of_one_machine_have_addresses_of_their_own() -> None:
    rig = Rig("n0", "n1")
    for number in range(40):
        rig.fleet.pod_seen(pod_json(f"p{number}", node=f"n{number % 2}"))
    assert len({rig.pod(f"p{number}").address for number in range(40)}) == 40


def test_pods_that_are_over_give_their_addresses_back() -> None:
    """A machine has 1023 of them, and finished pods stay for days."""
    rig = Rig("n0")
    for batch in range(11):
        for number in range(100):
            rig.fleet.pod_seen(pod_json(f"p{batch}-{number}", node="n0", run_seconds="1"))
        rig.run_to(60 * (batch + 1))
    assert rig.pod("p10-99").stage is Stage.ENDED
    assert len({rig.pod(f"p10-{number}").address for number in range(100)}) == 100


async def test_who_waits_for_the_end_is_woken() -> None:
    rig = Rig()
    rig.fleet.pod_seen(pod_json("p", run_seconds="10"))
    waiting = asyncio.create_task(rig.pod("p").wait_until_over())
    await asyncio.sleep(0)
    rig.run_to(60)
    await waiting
    await rig.pod("p").wait_until_over()  # who comes later does not wait at all
