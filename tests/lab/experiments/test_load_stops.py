"""Orders to stop: each is given for a job that then starts, or whose user withdrew it."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from coda_lab.experiments.load.stops import SOON_S, Stops

GUEST, OWNER = "blue/guest", "red/owner"


class Watched:
    """Stops that see one state after the other, at times that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.stops = Stops(now=lambda: self.now_s)
        self._last: dict[str, Json] = {}

    def see(self, job: str, *, generation: int = 1, **status: Any) -> None:
        namespace, name = job.split("/")
        metadata = {"namespace": namespace, "name": name, "generation": generation}
        item = {"metadata": metadata, "spec": {}, "status": {"attempt": 1} | status}
        self.stops.on_job(self._last.get(job), item)
        self._last[job] = item

    def lose(self, job: str) -> None:
        self.stops.on_job(self._last.pop(job), None)

    def stop_the_guest(self, cause: str = "FairShare", by: str = OWNER) -> None:
        self.see(GUEST, phase="Running", placement=released("p1"))
        self.see(OWNER, phase="Queued")
        self.see(GUEST, phase="Running", placement=released("p1") | {"stop": {"cause": cause, "by": by}})

    def free(self, answer: str = "Late") -> None:
        last = {"attempt": 1, "cause": "FairShare", "by": OWNER, "answer": answer}
        self.see(GUEST, attempt=2, phase="Queued", lastStop=last)


def released(plan: str) -> dict[str, Any]:
    return {"attempt": 1, "planId": plan, "state": "Released"}


def test_an_order_is_served_once_its_job_is_placed() -> None:
    watched = Watched()
    watched.stop_the_guest()
    watched.free("Saved")
    watched.now_s += 3.0
    watched.see(OWNER, phase="Starting", placement=released("p2"))
    assert watched.stops.problems() == ()
    assert watched.stops.as_json() == {
        "orders": {"FairShare": 1},
        "answers": {"FairShare Saved": 1},
        "withdrawn": 0,
        "slowest_start_s": 3.0,
    }


@pytest.mark.parametrize(
    ("waits_s", "problem"), [(SOON_S + 1, "was placed 61 s after its end"), (None, "red/owner was never placed")]
)
def test_a_job_that_stopped_in_vain_is_a_problem(waits_s: float | None, problem: str) -> None:
    watched = Watched()
    watched.stop_the_guest()
    watched.free()
    if waits_s is not None:
        watched.now_s += waits_s
        watched.see(OWNER, phase="Starting", placement=released("p2"))
    (said,) = watched.stops.problems()
    assert said.startswith("attempt 1 of blue/guest was stopped (FairShare), but ")
    assert said.endswith(problem)


def test_another_job_that_takes_the_room_serves_nobody() -> None:
    watched = Watched()
    watched.stop_the_guest()
    watched.free()
    watched.see("firm/third", phase="Starting", placement=released("p3"))
    assert len(watched.stops.problems()) == 1


def test_a_job_of_another_namespace_is_known_by_its_namespace_only() -> None:
    watched = Watched()
    watched.stop_the_guest(by="red/*")
    watched.free()
    watched.see("firm/third", phase="Starting", placement=released("p3"))
    assert len(watched.stops.problems()) == 1
    watched.see("red/any", phase="Starting", placement=released("p4"))
    assert watched.stops.problems() == ()


def test_a_cpu_job_is_served_once_one_of_its_pods_is_bound() -> None:
    watched = Watched()
    watched.stop_the_guest("Preempt", by="batch/*")
    watched.free()
    pod: Json = {"metadata": {"namespace": "batch", "name": "sweep-1"}, "spec": {}}
    watched.stops.on_pod(None, pod)
    assert len(watched.stops.problems()) == 1
    watched.stops.on_pod(pod, pod | {"spec": {"nodeName": "n"}})
    assert watched.stops.problems() == ()


@pytest.mark.parametrize("how", ["deleted", "edited", "suspended"])
def test_an_order_whose_job_is_withdrawn_is_no_problem(how: str) -> None:
    watched = Watched()
    watched.stop_the_guest()
    if how == "deleted":
        watched.lose(OWNER)
    elif how == "edited":
        watched.see(OWNER, generation=2, phase="Queued")
    else:
        watched.see(OWNER, generation=2, phase="Suspended")
    watched.free()
    assert watched.stops.problems() == ()
    assert watched.stops.as_json()["withdrawn"] == 1


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_job_that_ends_or_is_edited_while_it_runs_withdraws_nothing(phase: str) -> None:
    """Any other job of the namespace that gets the room: it does not wait for it."""
    watched = Watched()
    watched.see("red/other", phase="Running", placement=released("p0"))
    watched.stop_the_guest(by="red/*")
    watched.free()
    watched.see("red/other", generation=2, phase=phase, placement=released("p0"))
    watched.lose("red/other")
    (said,) = watched.stops.problems()
    assert said.endswith("red/* was never placed")


def test_an_order_is_counted_once_though_it_is_seen_again() -> None:
    watched = Watched()
    watched.stop_the_guest()
    watched.see(GUEST, phase="Running", reason="Stopping", placement=released("p1") | {"stop": {"by": OWNER}})
    stopping = released("p1") | {"stop": {"cause": "FairShare", "by": OWNER}}
    watched.stops.on_job(
        None,
        {"metadata": {"namespace": "blue", "name": "guest"}, "spec": {}, "status": {"placement": stopping}},
    )
    assert len(watched.stops.orders) == 1


def test_a_job_that_is_upgraded_is_served_by_its_own_next_placement() -> None:
    watched = Watched()
    watched.stop_the_guest("Upgrade", by=GUEST)
    watched.see(GUEST, attempt=2, phase="Starting", placement=released("p2"))
    assert watched.stops.problems() == ()
    assert watched.stops.orders[0].waited_s == 0.0


def place_of_the_owner(watched: Watched, **status: Any) -> None:
    watched.see(OWNER, placement=released("p2") | {"cpusPerReplica": 8}, **{"phase": "Running"} | status)


def resized(cores: int, state: str = "Done", sequence: int = 1) -> dict[str, Any]:
    return {"attempt": 1, "sequence": sequence, "state": state, "coresPerReplica": cores}


def stopped_for_a_running_job(by: str = OWNER) -> Watched:
    watched = Watched()
    watched.see(GUEST, phase="Running", placement=released("p1"))
    place_of_the_owner(watched, resize=resized(10), tuning={"phase": "Wishing"})
    watched.see(GUEST, phase="Running", placement=released("p1") | {"stop": {"cause": "Preempt", "by": by}})
    watched.free()
    assert len(watched.stops.problems()) == 1
    return watched


def test_a_stop_for_a_running_job_is_served_by_more_cores() -> None:
    watched = stopped_for_a_running_job()
    place_of_the_owner(watched, resize=resized(12, "Resizing", 2))
    assert watched.stops.problems() == (
        f"attempt 1 of {GUEST} was stopped (Preempt), but {OWNER} was never given more cores",
    )
    place_of_the_owner(watched, resize=resized(12, sequence=2))
    assert watched.stops.problems() == ()


def test_fewer_cores_and_edits_serve_nobody() -> None:
    watched = stopped_for_a_running_job()
    place_of_the_owner(watched, resize=resized(9, "Resizing", 2))
    place_of_the_owner(watched, resize=resized(9, sequence=2))
    place_of_the_owner(watched, resize=resized(9, sequence=2), generation=2)
    assert len(watched.stops.problems()) == 1


@pytest.mark.parametrize("status", [{"phase": "Succeeded"}, {"attempt": 2}, {"phase": "Restarting"}])
def test_a_running_job_that_ends_first_needs_nothing(status: dict[str, Any]) -> None:
    watched = stopped_for_a_running_job()
    place_of_the_owner(watched, **status)
    assert watched.stops.problems() == ()


def test_a_running_job_that_ends_much_later_was_left_waiting() -> None:
    watched = stopped_for_a_running_job()
    watched.now_s += SOON_S + 1
    place_of_the_owner(watched, phase="Succeeded")
    assert len(watched.stops.problems()) == 1


def test_a_stop_for_a_job_that_is_placed_already_is_served_once_all_of_it_runs() -> None:
    watched = Watched()
    watched.see(GUEST, phase="Running", placement=released("p1"))
    place_of_the_owner(watched, phase="Launched")
    watched.see(GUEST, phase="Running", placement=released("p1") | {"stop": {"cause": "Preempt", "by": OWNER}})
    watched.free()
    place_of_the_owner(watched, phase="Starting")
    assert len(watched.stops.problems()) == 1
    place_of_the_owner(watched)
    assert watched.stops.problems() == ()


def test_a_running_job_of_another_namespace_is_not_named() -> None:
    """More cores for one of its jobs serve the stop, and so does the end of one that wished for some."""
    for status in ({"resize": resized(12, sequence=2)}, {"phase": "Succeeded"}):
        watched = stopped_for_a_running_job(by="red/*")
        place_of_the_owner(watched, **status)
        assert watched.stops.problems() == ()
    watched = stopped_for_a_running_job(by="red/*")
    place_of_the_owner(watched, resize=resized(10))
    place_of_the_owner(watched, phase="Succeeded")
    assert len(watched.stops.problems()) == 1
