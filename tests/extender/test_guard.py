from typing import Any

import pytest

from coda.guarding import ENOUGH_NODES
from coda_extender.guard import BOUND, NO_PLAN, OTHER_NODE, OUT_OF_TOUCH, TAKEN, WITHHELD, Guard
from coda_extender.wire import Answer, Question
from coda_kube.reading import id_of, pod_from_json
from coda_kube.state import ClusterState
from coda_kube.watching import version_of
from tests.extender.objects import given_up, job_json, node_json, placement, pod_json, rank_json


class Known:
    """A guard and what it knows, without caches: objects are told as they come."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.settled = 0
        self.in_touch = True
        self.state = ClusterState()
        self.guard = Guard(
            self.state,
            in_flight_limit_s=30.0,
            clock=lambda: self.now_s,
            in_touch=lambda: self.in_touch,
            on_settled=self._count,
        )
        self.version = 0

    def _count(self) -> None:
        self.settled += 1

    def node(self, name: str, **how: Any) -> None:
        self.state.on_node(None, node_json(name, **how))
        self.guard.node_changed(name)

    def job(self, *args: Any, **how: Any) -> None:
        item = job_json(*args, **how)
        item["metadata"]["namespace"] = "default"
        self.state.on_job(None, item)
        self.guard.job_changed(id_of(item))

    def pod(self, old: Any, new: Any) -> None:
        self.version += 1
        if new is not None:
            new["metadata"]["resourceVersion"] = str(self.version)
        key = f"default/{(new or old)['metadata']['name']}"
        before = self.state.pod_by_id.get(key)
        self.state.on_pod(old, new)
        self.guard.pod_changed(before, self.state.pod_by_id.get(key), old, new)

    def ask(self, pod: Any, *names: str) -> Answer:
        return self.guard.filter(Question(pod=pod_from_json(pod), pod_version=version_of(pod), names=list(names)))

    def scores(self, pod: Any, *names: str) -> dict[str, int]:
        return self.guard.scores(Question(pod=pod_from_json(pod), pod_version=0, names=list(names)))


@pytest.fixture
def known() -> Known:
    known = Known()
    for name in ("n1", "n2", "n3"):
        known.node(name)
    return known


# --- ranks of gangs ---------------------------------------------------------------------------------------------------


def test_a_rank_may_go_to_its_planned_node_only(known: Known) -> None:
    known.job("gang", replicas=2, placement=placement("n2", "n1"))
    answer = known.ask(rank_json("gang", 0, "n2"), "n1", "n2")
    assert answer == Answer(passed=["n2"], refused={"n1": OTHER_NODE})


def test_a_rank_whose_node_was_not_offered_goes_nowhere(known: Known) -> None:
    known.job("gang", placement=placement("n2"))
    assert known.ask(rank_json("gang", 0, "n2"), "n1") == Answer(passed=[], refused={"n1": OTHER_NODE})


def test_a_rank_without_a_released_plan_goes_nowhere(known: Known) -> None:
    known.job("gang", placement=placement("n1", state="Committed"))
    assert known.ask(rank_json("gang", 0, "n1"), "n1") == Answer(passed=[], refused={"n1": NO_PLAN})


def test_a_pod_that_is_bound_already_gets_its_node_again(known: Known) -> None:
    pod = pod_json("foreign", node="n2")
    known.pod(None, pod)
    answer = known.ask(pod_json("foreign"), "n1", "n2")
    assert answer == Answer(passed=["n2"], refused={"n1": BOUND})
    assert len(known.guard.ledger) == 0


def test_a_pod_recreated_under_its_old_name_is_not_taken_for_the_bound_one(known: Known) -> None:
    known.pod(None, pod_json("foreign", node="n2"))
    again = pod_json("foreign", metadata={"uid": "another", "name": "foreign", "namespace": "default"})
    assert known.ask(again, "n1", "n2").passed == ["n1", "n2"]


# --- foreign pods -----------------------------------------------------------------------------------------------------


def test_nodes_without_plans_pass_untouched(known: Known) -> None:
    assert known.ask(pod_json("foreign", gpus=64), "n1", "n2", "unknown").passed == ["n1", "n2", "unknown"]


@pytest.mark.parametrize("state", ["Committed", "Released"])
def test_planned_capacity_is_kept_from_the_commit_on(known: Known, state: str) -> None:
    known.job("gang", placement=placement("n1", state=state))
    answer = known.ask(pod_json("foreign", gpus=1), "n1", "n2")
    assert answer == Answer(passed=["n2"], refused={"n1": WITHHELD})


def test_what_a_plan_leaves_may_be_taken(known: Known) -> None:
    known.job("gang", gpus=6, placement=placement("n1"))
    assert known.ask(pod_json("two", gpus=2), "n1").passed == ["n1"]
    assert known.ask(pod_json("three", gpus=3), "n1").passed == []


def test_of_two_pods_for_the_last_place_beside_a_plan_only_one_passes(known: Known) -> None:
    known.job("gang", gpus=6, placement=placement("n1"))
    assert known.ask(pod_json("one", gpus=2), "n1").passed == ["n1"]
    assert known.ask(pod_json("two", gpus=2), "n1").passed == []
    assert known.ask(pod_json("one", gpus=2), "n1").passed == ["n1"], "filtered again it does not stand in its own way"


def test_a_bound_rank_is_counted_once(known: Known) -> None:
    known.job("gang", replicas=2, gpus=2, placement=placement("n1", "n1"))
    rank = rank_json("gang", 0, "n1")
    rank["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "2", "cpu": "4"}}
    known.pod(None, rank)
    assert known.ask(pod_json("four", gpus=4), "n1").passed == ["n1"]
    known.pod(None, pod_json("four", gpus=4, node="n1"))
    known.pod(rank, rank | {"spec": rank["spec"] | {"nodeName": "n1"}})
    assert known.ask(pod_json("one", gpus=1), "n1").passed == []
    known.pod(rank, None)
    known.job("gang", replicas=2, gpus=2, phase="Succeeded", placement=placement("n1", "n1"))
    assert known.ask(pod_json("other", gpus=4), "n1").passed == ["n1"]


def test_the_room_follows_the_node(known: Known) -> None:
    known.job("gang", placement=placement("n1"))
    known.node("n1", gpus=16)
    assert known.ask(pod_json("foreign", gpus=8), "n1").passed == ["n1"]
    known.state.on_node(node_json("n1"), None)
    known.guard.node_changed("n1")
    assert known.ask(pod_json("late", gpus=1), "n1").passed == []


def test_after_a_takeover_unbound_pods_of_the_guarded_schedulers_are_everywhere(known: Known) -> None:
    known.job("gang", gpus=6, placement=placement("n1"))
    known.pod(None, pod_json("unbound", gpus=2))
    known.pod(None, pod_json("other", gpus=2, scheduler="default-scheduler"))
    known.pod(None, pod_json("hopeless", gpus=2, status=given_up()))
    known.pod(None, pod_json("unlucky", gpus=2, status=given_up("SchedulerError")))
    known.pod(None, pod_json("gated", gpus=2, spec={"schedulingGates": [{"name": "later"}]}))
    known.guard.take_over(("coda",), limit_s=5.0)
    assert [pod.uid for pod in known.guard.ledger.pods()] == ["uid-unbound"]
    assert known.ask(pod_json("new", gpus=2), "n1").passed == []
    known.now_s += 5.0
    assert known.ask(pod_json("new", gpus=2), "n1").passed == ["n1"]


# --- binds that kube-scheduler may have forgotten --------------------------------------------------------------------


def bound_gang(known: Known) -> None:
    """A gang of 8 GPUs, planned and then bound on n1."""
    known.job("gang", placement=placement("n1"))
    known.pod(None, rank := rank_json("gang", 0, "n1"))
    known.pod(rank, rank | {"spec": rank["spec"] | {"nodeName": "n1"}})


def test_the_room_of_a_bound_rank_stays_closed_to_a_scheduler_that_forgot_it(known: Known) -> None:
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
    assert known.ask(later, "n1").passed == [], "a list anew reaches all of the scheduler in no order"
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
    assert len(known.guard.ledger) == 0


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


def test_a_pod_whose_status_changes_is_not_bound_anew(known: Known) -> None:
    known.pod(None, old := pod_json("first", gpus=8, node="n1"))
    known.now_s += 60.0
    known.pod(old, pod_json("first", gpus=8, node="n1", status={"phase": "Running"}))
    assert known.ask(pod_json("second", gpus=8), "n1").passed == ["n1"], "kube-scheduler knows better by now"


# --- scores -----------------------------------------------------------------------------------------------------------


def _many_nodes(known: Known, count: int = ENOUGH_NODES + 20) -> list[str]:
    names = [f"many-{number:03}" for number in range(count)]
    for name in names:
        known.node(name)
    return names


def test_of_many_nodes_alike_a_foreign_pod_is_left_as_many_as_kube_scheduler_needs(known: Known) -> None:
    names = _many_nodes(known)
    assert known.ask(pod_json("other"), *names) == Answer(passed=names[:ENOUGH_NODES], refused={})


def test_those_left_are_the_best_in_the_order_offered(known: Known) -> None:
    names = _many_nodes(known)
    for name in (names[-1], names[-5]):
        known.node(name, gpus=0)
    passed = known.ask(pod_json("other"), *names).passed
    assert list(passed) == [*names[: ENOUGH_NODES - 2], names[-5], names[-1]]


@pytest.mark.parametrize(
    "wish", [{"affinity": {"podAntiAffinity": {}}}, {"topologySpreadConstraints": [{"maxSkew": 1}]}]
)
def test_a_foreign_pod_that_says_where_it_would_rather_be_may_choose_among_all(
    known: Known, wish: dict[str, Any]
) -> None:
    names = _many_nodes(known)
    pod = pod_json("other")
    pod["spec"].update(wish)
    assert known.ask(pod, *names) == Answer(passed=names, refused={})


def test_foreign_pods_prefer_nodes_with_the_fewest_free_gpus(known: Known) -> None:
    known.pod(None, pod_json("a", gpus=6, node="n2"))
    known.job("gang", gpus=8, placement=placement("n3"))
    assert known.scores(pod_json("foreign"), "n1", "n2", "n3", "x") == {"n1": 2, "n2": 8, "n3": 10}
    assert known.scores(pod_json("foreign"), "n1", "n2", "n3") == {"n2": 6, "n3": 8}


def test_where_all_nodes_are_alike_no_score_is_told(known: Known) -> None:
    known.job("gang", gpus=8, placement=placement("n3"))
    assert known.scores(pod_json("foreign"), "n1", "n2") == {}
    assert known.scores(pod_json("foreign")) == {}


def test_ranks_prefer_their_planned_node(known: Known) -> None:
    known.job("gang", placement=placement("n2"))
    assert known.scores(rank_json("gang", 0, "n2"), "n1", "n2") == {"n2": 10}
    assert known.scores(rank_json("gang", 0, "n2"), "n1") == {}
