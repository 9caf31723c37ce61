"""Binds that kube-scheduler may have forgotten: what the guard keeps closed until it is seen to know of them."""

from coda.placements.lingering_use import LONGEST_S
from coda_extender.guard.guard import OUT_OF_TOUCH, TAKEN
from coda_extender.guard.unconfirmed_binds import UnconfirmedBinds
from coda_extender.protocol import Answer
from tests.extender.guards import Known
from tests.extender.objects import placement, pod_json, rank_json


def bound_gang(known: Known) -> None:
    """A gang of 8 GPUs, planned and then bound on n1."""
    known.job("gang", placement=placement("n1"))
    known.pod(None, rank := rank_json("gang", 0, "n1"))
    known.pod(rank, rank | {"spec": rank["spec"] | {"nodeName": "n1"}})


def test_the_capacity_of_a_bound_rank_stays_closed_to_a_scheduler_that_forgot_it(known: Known) -> None:
    """The API server stored the bind and died before it answered: kube-scheduler offers the node as if it were free."""
    known.pod(None, old := pod_json("old", gpus=1))
    bound_gang(known)
    assert known.ask(old, "n1", "n2") == Answer(passed=["n2"], refused={"n1": TAKEN})
    known.now_s += 30.0
    assert known.ask(old, "n1", "n2").passed == ["n2"], "its watch may stay away for longer"


def test_so_does_that_of_a_foreign_pod(known: Known) -> None:
    known.pod(None, old := pod_json("old", gpus=3))
    known.pod(None, first := pod_json("first", gpus=6))
    known.pod(first, pod_json("first", gpus=6, node="n1"))
    assert known.ask(old, "n1", "n2") == Answer(passed=["n2"], refused={"n1": TAKEN})
    assert known.ask(pod_json("small", gpus=2), "n1", "n2").passed == ["n1", "n2"], "what is left is not touched"


def test_a_scheduler_that_shows_a_later_pod_knows_the_bind_and_is_believed_again(known: Known) -> None:
    """It may have freed the node by now without the guard having heard of that."""
    bound_gang(known)
    known.pod(None, later := pod_json("later", gpus=1))
    assert known.ask(later, "n1").passed == [], "after a new list, all of the scheduler hears in no order"
    known.now_s += 2.0
    assert known.ask(later, "n1").passed == ["n1"]


def test_a_scheduler_that_shows_nothing_new_is_believed_after_a_minute(known: Known) -> None:
    known.pod(None, old := pod_json("old", gpus=1))
    bound_gang(known)
    known.now_s += 59.0
    assert known.ask(old, "n1").passed == []
    known.now_s += 1.0
    assert known.ask(old, "n1").passed == ["n1"]


def test_a_version_that_no_pod_can_have_yet_proves_nothing_about_later_binds(known: Known) -> None:
    liar = pod_json("liar", gpus=1, metadata={"resourceVersion": str(10**9), "name": "liar", "namespace": "default"})
    for _ in range(3):
        known.ask(liar, "n2")
        known.now_s += 2.0
    bound_gang(known)
    assert known.ask(pod_json("old", gpus=1), "n1").passed == []


def test_foreign_pods_wait_while_nobody_knows_what_was_bound_and_ranks_do_not(known: Known) -> None:
    known.job("gang", placement=placement("n1"))
    known.in_touch = False
    assert known.ask(pod_json("foreign"), "n2") == Answer(passed=(), refused={}, error=OUT_OF_TOUCH)
    assert known.ask(rank_json("gang", 0, "n1"), "n1").passed == ["n1"]
    assert len(known.guard.in_flight) == 0


def test_after_an_outage_pods_in_flight_count_where_a_bind_may_be_forgotten(known: Known) -> None:
    """kube-scheduler tries all pods again at once and takes n1, where it forgot six GPUs, for empty."""
    known.pod(None, forgotten := pod_json("forgotten", gpus=6))
    known.pod(None, one := pod_json("one", gpus=2))
    known.pod(None, two := pod_json("two", gpus=2))
    known.pod(forgotten, pod_json("forgotten", gpus=6, node="n1"))
    known.guard.outage()
    assert known.ask(one, "n1", "n2").passed == ["n1", "n2"]
    assert known.ask(two, "n1", "n2") == Answer(passed=["n2"], refused={"n1": TAKEN})
    known.pod(one, pod_json("one", gpus=2, node="n2"))
    assert known.ask(two, "n1", "n2").passed == ["n1", "n2"], "the other one went elsewhere"


def test_without_an_outage_kube_scheduler_is_trusted_with_pods_in_flight(known: Known) -> None:
    known.pod(None, first := pod_json("first", gpus=6))
    known.pod(first, pod_json("first", gpus=6, node="n1"))
    assert known.ask(pod_json("one", gpus=2), "n1").passed == ["n1"]
    assert known.ask(pod_json("two", gpus=2), "n1").passed == ["n1"]


def test_the_doubt_ends_once_all_binds_from_the_outage_are_proven(known: Known) -> None:
    known.guard.outage()
    bound_gang(known)
    for moment in range(4):
        known.pod(None, later := pod_json(f"later-{moment}", gpus=1))
        known.ask(later, "n2")
        known.now_s += 2.0
    known.pod(None, first := pod_json("first", gpus=6))
    known.pod(first, pod_json("first", gpus=6, node="n3"))
    assert known.ask(pod_json("one", gpus=2), "n3").passed == ["n3"]
    assert known.ask(pod_json("two", gpus=2), "n3").passed == ["n3"]


def test_a_standby_that_nobody_asks_forgets_nodes_all_the_same() -> None:
    now_s = 0.0
    binds = UnconfirmedBinds(lambda: now_s)
    for version in range(1000):
        binds.add(f"node-{version}", version)
        now_s += 1.0
    assert len(binds.nodes) == LONGEST_S


def test_a_pod_whose_status_changes_is_not_bound_again(known: Known) -> None:
    known.pod(None, old := pod_json("first", gpus=8, node="n1"))
    known.now_s += 60.0
    known.pod(old, pod_json("first", gpus=8, node="n1", status={"phase": "Running"}))
    assert known.ask(pod_json("second", gpus=8), "n1").passed == ["n1"], "kube-scheduler knows better by now"
