"""What a pod that the API server never stored, or that nobody of Coda made, may claim: nothing but its own place."""

from __future__ import annotations

import pytest

from coda_extender.guard.guard import NO_PLAN, TAKEN, WITHHELD
from coda_extender.protocol import Answer
from tests.extender.guards import Known
from tests.extender.objects import Item, owner_of, placement, pod_json, rank_json


def test_a_pod_that_no_watch_shows_counts_in_flight_for_a_moment_only(known: Known) -> None:
    """Finding C5: one made-up pod with 8 GPUs kept every gang away for 30 s."""
    known.ask(pod_json("made-up", gpus=8), "n1", "n2")
    assert len(known.guard.in_flight) == 1, "kube-scheduler may be ahead of our watch"
    known.now_s += 1.1
    assert known.guard.in_flight.pods() == ()
    assert known.settled == 1


def test_a_pod_that_the_watch_shows_a_moment_later_counts_as_long_as_any(known: Known) -> None:
    known.ask(real := pod_json("real", gpus=8), "n1", "n2")
    known.now_s += 0.5
    known.pod(None, real)
    known.now_s += 20.0
    assert [pod.uid for pod in known.guard.in_flight.pods()] == ["uid-real"]
    known.now_s += 10.0
    assert known.guard.in_flight.pods() == ()


def test_a_uid_that_belongs_to_another_pod_of_that_name_is_no_proof(known: Known) -> None:
    known.pod(None, pod_json("web", gpus=1))
    known.ask(pod_json("web", gpus=8, metadata={"name": "web", "namespace": "default", "uid": "made-up"}), "n1")
    known.now_s += 1.1
    assert known.guard.in_flight.pods() == ()


def bound_gang(known: Known) -> None:
    known.job("gang", placement=placement("n1"))
    known.pod(None, rank := rank_json("gang", 0, "n1"))
    known.pod(rank, rank | {"spec": rank["spec"] | {"nodeName": "n1"}})


def versioned(name: str, version: int) -> Item:
    return pod_json(name, gpus=1, metadata={"name": name, "namespace": "default", "resourceVersion": str(version)})


def test_a_made_up_resource_version_proves_no_bind(known: Known) -> None:
    """Finding C5: it switched off what the guard believes of kube-scheduler (decision 0008)."""
    bound_gang(known)
    for _ in range(5):
        known.ask(versioned("liar", 10**9), "n2")
        known.now_s += 2.0
    assert known.ask(pod_json("foreign", gpus=1), "n1") == Answer(passed=[], refused={"n1": TAKEN})


def test_a_known_pod_proves_no_more_than_its_own_version(known: Known) -> None:
    known.pod(None, pod_json("old", gpus=1))
    bound_gang(known)
    for _ in range(5):
        known.ask(versioned("old", 10**9), "n2")
        known.now_s += 2.0
    assert known.ask(pod_json("foreign", gpus=1), "n1").passed == []


def test_a_question_ahead_of_the_watch_proves_the_binds_once_the_pod_is_shown(known: Known) -> None:
    bound_gang(known)
    later = pod_json("later", gpus=1)
    known.ask(later | {"metadata": later["metadata"] | {"resourceVersion": str(known.version + 1)}}, "n2")
    known.pod(None, later)
    known.now_s += 2.0
    assert known.ask(pod_json("foreign", gpus=1), "n1").passed == [], "all of the scheduler hears within 2 s"
    known.now_s += 2.0
    assert known.ask(pod_json("foreign", gpus=1), "n1").passed == ["n1"]


def forged(**changes: object) -> Item:
    """A rank of the running job `gang`, but for these parts of its metadata."""
    pod = rank_json("gang", 0, "n1", gpus=8)
    return pod | {"metadata": pod["metadata"] | changes}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        pytest.param(forged(ownerReferences=[]), WITHHELD, id="labels alone: a foreign pod like any other"),
        pytest.param(
            forged(ownerReferences=[owner_of("gang") | {"controller": False}]), WITHHELD, id="owned but not controlled"
        ),
        pytest.param(forged(ownerReferences=[owner_of("other")]), WITHHELD, id="of another job"),
        pytest.param(rank_json("gang", 0, "n1", gpus=9), NO_PLAN, id="asks for more than was planned"),
        pytest.param(rank_json("gang", 0, "n2", gpus=8), NO_PLAN, id="pinned elsewhere"),
    ],
)
def test_who_only_looks_like_a_rank_gets_no_withheld_capacity(known: Known, pod: Item, reason: str) -> None:
    """Finding C3: labels of one's own running job passed the filter with any request."""
    known.job("gang", phase="Launched", placement=placement("n1"))
    assert known.ask(pod, "n1") == Answer(passed=[], refused={"n1": reason})
    honest = rank_json("gang", 0, "n1", gpus=8)
    assert known.ask(honest, "n1").passed == ["n1"]


def test_a_rank_is_judged_as_the_api_server_shows_it(known: Known) -> None:
    known.job("gang", phase="Launched", placement=placement("n1"))
    known.pod(None, rank_json("gang", 0, "n1", gpus=9))
    assert known.ask(rank_json("gang", 0, "n1", gpus=8), "n1").refused == {"n1": NO_PLAN}


def test_a_new_leader_counts_a_nominated_pod_for_an_hour_at_most(known: Known) -> None:
    """Whoever may write the status of a pod names a node there, and kube-scheduler may never bind it."""
    known.pod(None, pod_json("waits", gpus=8, status={"nominatedNodeName": "n1"}))
    known.guard.take_over(("coda",), limit_s=5.0)
    known.now_s += 1800.0  # its volume may take long
    assert [pod.nodes for pod in known.guard.in_flight.pods()] == [("n1",)]
    known.now_s += 1801.0
    assert known.guard.in_flight.pods() == ()
