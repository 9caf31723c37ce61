from typing import Any

import pytest

from coda.model import NOTHING
from coda.placements import InFlight
from coda_extender.guard.in_flight import InFlightPods
from coda_kube.objects.read import pod_from_json
from tests.extender.objects import given_up, pod_json


class Watched:
    """A ledger with one foreign pod in flight, filtered at resourceVersion 10."""

    def __init__(self, nodes: tuple[str, ...] = ("n1",)) -> None:
        self.nodes = nodes
        self.now_s = 0.0
        self.settled = 0
        self.in_flight = InFlightPods(lambda: self.now_s, self._count)
        self.pod = versioned(pod_json("foreign", gpus=1), 10)
        self.add(30.0)

    def _count(self) -> None:
        self.settled += 1

    def add(self, limit_s: float) -> None:
        pod = pod_from_json(self.pod)
        in_flight = InFlight(uid=pod.uid, request=pod.request, nodes=self.nodes)
        self.in_flight.add(in_flight, version=10, limit_s=limit_s)

    def see(self, new: Any) -> None:
        after = pod_from_json(new) if new is not None else None
        self.in_flight.observe(pod_from_json(self.pod), after, self.pod, new)
        self.pod = new


def versioned(item: Any, version: int) -> Any:
    item["metadata"]["resourceVersion"] = str(version)
    return item


@pytest.fixture
def watched() -> Watched:
    return Watched()


ENDED = {"phase": "Failed"}


@pytest.mark.parametrize(
    ("news", "left"),
    [
        pytest.param(versioned(pod_json("foreign", gpus=1, node="n1"), 11), 0, id="bound"),
        pytest.param(None, 0, id="deleted"),
        pytest.param(versioned(pod_json("foreign", gpus=1, status=ENDED), 11), 0, id="ended"),
        pytest.param(versioned(pod_json("foreign", gpus=1, status=given_up()), 11), 0, id="unschedulable"),
        pytest.param(versioned(pod_json("foreign", gpus=1, status=given_up("SchedulerError")), 11), 0, id="bind fails"),
        pytest.param(versioned(pod_json("foreign", gpus=1, status=given_up()), 10), 1, id="news from before the call"),
        pytest.param(versioned(pod_json("foreign", gpus=1, metadata={"labels": {"a": "b"}, "name": "foreign",
                     "namespace": "default", "uid": "uid-foreign"}), 11), 1, id="relabelled"),
        pytest.param(versioned(pod_json("foreign", gpus=1, metadata={"uid": "new", "name": "foreign",
                     "namespace": "default"}), 11), 0, id="recreated"),
    ],
)  # fmt: skip
def test_a_pod_is_in_flight_until_it_is_heard_of(watched: Watched, news: Any, left: int) -> None:
    watched.see(news)
    assert len(watched.in_flight) == left
    assert watched.settled == 1 - left
    assert (watched.in_flight.total == NOTHING) is (left == 0)


def test_a_condition_that_was_false_before_the_call_settles_nothing(watched: Watched) -> None:
    watched.pod = versioned(pod_json("foreign", gpus=1, status=given_up()), 10)
    watched.see(versioned(pod_json("foreign", gpus=1, status=given_up() | {"qosClass": "Burstable"}), 11))
    assert len(watched.in_flight) == 1
    watched.see(versioned(pod_json("foreign", gpus=1, status=given_up(message="for a new reason")), 12))
    assert len(watched.in_flight) == 0


def test_a_pod_filtered_again_counts_once(watched: Watched) -> None:
    watched.add(30.0)
    assert len(watched.in_flight) == 1
    assert watched.in_flight.total.gpus == 1
    assert watched.in_flight.others("uid-foreign")[1].gpus == 0


def test_a_pod_never_heard_of_again_times_out(watched: Watched) -> None:
    watched.now_s = 20.0
    assert watched.in_flight.next_expiry_in_s() == 10.0
    assert len(watched.in_flight.pods()) == 1
    watched.now_s = 30.0
    assert watched.in_flight.pods() == ()
    assert (watched.in_flight.timed_out, watched.settled, watched.in_flight.total) == (1, 1, NOTHING)
    assert watched.in_flight.next_expiry_in_s() is None


def nominated(node: str, version: int) -> Any:
    return versioned(pod_json("foreign", gpus=1, status={"nominatedNodeName": node}), version)


def test_a_pod_that_waits_on_a_chosen_node_is_in_flight_there_until_it_is_bound_or_given_up() -> None:
    """Its volume may take minutes: no other node need wait for it, and that one must, for as long as it takes."""
    watched = Watched(nodes=("n1", "n2"))
    watched.see(nominated("n2", 11))
    assert [pod.nodes for pod in watched.in_flight.pods()] == [("n2",)]
    assert watched.settled == 1  # the planner looks again
    watched.now_s = 1000.0
    assert [pod.nodes for pod in watched.in_flight.pods()] == [("n2",)]
    assert watched.in_flight.next_expiry_in_s() is None
    watched.see(versioned(pod_json("foreign", gpus=1, status=given_up("SchedulerError")), 12))
    assert len(watched.in_flight) == 0


@pytest.mark.parametrize(
    "news",
    [
        pytest.param(nominated("n2", 10), id="from before the call"),
        pytest.param(nominated("n3", 11), id="a node it was not offered"),
    ],
)
def test_news_that_is_no_choice_of_this_call_narrows_nothing(news: Any) -> None:
    watched = Watched(nodes=("n1", "n2"))
    watched.see(news)
    assert [pod.nodes for pod in watched.in_flight.pods()] == [("n1", "n2")]
