"""Who may take which node: ranks of gangs where their plan says, foreign pods what plans leave."""

from typing import Any

import pytest

from coda.model import JobId
from coda.placements.filter_rules import ENOUGH_NODES
from coda_extender.guard.guard import BOUND, NO_PLAN, OTHER_NODE, WITHHELD
from coda_extender.protocol import Answer
from tests.extender.guards import Known
from tests.extender.objects import given_up, node_json, placement, pod_json, rank_json

# --- ranks of gangs ---------------------------------------------------------------------------------------------------


def test_a_rank_may_go_to_its_planned_node_only(known: Known) -> None:
    known.job("gang", replicas=2, placement=placement("n2", "n1"))
    answer = known.ask(rank_json("gang", 0, "n2"), "n1", "n2")
    assert answer == Answer(passed=["n2"], refused={"n1": OTHER_NODE})


def test_a_rank_whose_node_was_not_offered_goes_nowhere(known: Known) -> None:
    known.job("gang", placement=placement("n2"))
    assert known.ask(rank_json("gang", 0, "n2"), "n1") == Answer(passed=[], refused={"n1": OTHER_NODE})


def test_a_rank_without_a_released_placement_goes_nowhere(known: Known) -> None:
    known.job("gang", placement=placement("n1", state="Committed"))
    assert known.ask(rank_json("gang", 0, "n1"), "n1") == Answer(passed=[], refused={"n1": NO_PLAN})


def test_a_pod_that_is_bound_already_gets_its_node_again(known: Known) -> None:
    pod = pod_json("foreign", node="n2")
    known.pod(None, pod)
    answer = known.ask(pod_json("foreign"), "n1", "n2")
    assert answer == Answer(passed=["n2"], refused={"n1": BOUND})
    assert len(known.guard.in_flight) == 0


def test_a_pod_recreated_under_its_old_name_is_not_taken_for_the_bound_one(known: Known) -> None:
    known.pod(None, pod_json("foreign", node="n2"))
    again = pod_json("foreign", metadata={"uid": "another", "name": "foreign", "namespace": "default"})
    assert known.ask(again, "n1", "n2").passed == ["n1", "n2"]


def unplanned(known: Known, change: str) -> None:
    """What takes away the placement of `gang`."""
    match change:
        case "failed":
            known.job("gang", phase="Failed", placement=placement("n1", "n2"), replicas=2)
        case "removed":
            known.job("gang", replicas=2)
        case "gone":
            known.state.on_job(known.state.job_json_by_id[JobId("default/gang")], None)
            known.guard.job_changed(JobId("default/gang"))


@pytest.mark.parametrize("change", ["failed", "removed", "gone"])
def test_a_rank_that_passed_may_still_be_bound_when_its_placement_is_gone(known: Known, change: str) -> None:
    """Else the next gang is placed where kube-scheduler binds this rank in the same moment."""
    known.job("gang", replicas=2, placement=placement("n1", "n2"))
    first, second = rank_json("gang", 0, "n1"), rank_json("gang", 1, "n2")
    for rank in (first, second):
        known.pod(None, rank)
        assert known.ask(rank, "n1", "n2").passed
    assert known.guard.in_flight.pods() == (), "the placement withholds it"
    unplanned(known, change)
    assert {pod.nodes for pod in known.guard.in_flight.pods()} == {("n1",), ("n2",)}
    assert all(pod.request.gpus for pod in known.guard.in_flight.pods())
    known.pod(first, first | {"spec": first["spec"] | {"nodeName": "n1"}})
    assert {pod.nodes for pod in known.guard.in_flight.pods()} == {("n2",)}, "it is bound, and counts as such"
    known.pod(second, None)
    assert known.guard.in_flight.pods() == ()


def test_a_rank_that_is_bound_before_its_placement_goes_is_not_in_flight(known: Known) -> None:
    known.job("gang", replicas=2, placement=placement("n1", "n2"))
    first, second = rank_json("gang", 0, "n1"), rank_json("gang", 1, "n2")
    for rank in (first, second):
        known.pod(None, rank)
        known.ask(rank, "n1", "n2")
    known.pod(first, first | {"spec": first["spec"] | {"nodeName": "n1"}})
    known.pod(second, second | {"status": given_up()})
    unplanned(known, "failed")
    assert known.guard.in_flight.pods() == ()


def test_a_new_leader_counts_ranks_that_may_have_passed_the_last_ones_filter(known: Known) -> None:
    known.job("gang", replicas=2, placement=placement("n1", "n2"))
    known.pod(None, rank_json("gang", 0, "n1"))
    known.guard.take_over(("coda",), limit_s=5.0)
    assert known.guard.in_flight.pods() == (), "the placement withholds it"
    unplanned(known, "failed")
    assert [pod.nodes for pod in known.guard.in_flight.pods()] == [("n1",)]
    known.guard.take_over(("coda",), limit_s=5.0)
    assert [pod.nodes for pod in known.guard.in_flight.pods()] == [("n1",)], "also without a placement"
    known.now_s += 5.0  # no longer than any other pod: it may only say that it is a rank
    assert known.guard.in_flight.pods() == ()


# --- foreign pods -----------------------------------------------------------------------------------------------------


def test_nodes_without_placements_pass_untouched(known: Known) -> None:
    assert known.ask(pod_json("foreign", gpus=64), "n1", "n2", "unknown").passed == ["n1", "n2", "unknown"]


@pytest.mark.parametrize("state", ["Committed", "Released"])
def test_planned_capacity_is_kept_from_the_commit_on(known: Known, state: str) -> None:
    known.job("gang", placement=placement("n1", state=state))
    answer = known.ask(pod_json("foreign", gpus=1), "n1", "n2")
    assert answer == Answer(passed=["n2"], refused={"n1": WITHHELD})


def test_what_a_placement_leaves_may_be_taken(known: Known) -> None:
    known.job("gang", gpus=6, placement=placement("n1"))
    assert known.ask(pod_json("two", gpus=2), "n1").passed == ["n1"]
    assert known.ask(pod_json("three", gpus=3), "n1").passed == []


def test_gpus_that_a_node_does_not_list_are_not_judged(known: Known) -> None:
    """Those of a DRA driver, asked for by `extendedResourceName`: only kube-scheduler knows what is free of them."""
    known.node("dra", gpus=0)
    known.pod(None, first := pod_json("first", gpus=1))
    assert known.ask(first, "dra").passed == ["dra"]
    known.pod(first, pod_json("first", gpus=1, node="dra"))
    assert known.ask(pod_json("second", gpus=1), "dra").passed == ["dra"]
    assert known.ask(pod_json("large", gpus=1, cpu="48"), "dra").passed == [], "cores are judged as everywhere"
    assert known.scores(pod_json("third", gpus=1), "dra", "n1") == {"dra": 8}
    known.job("gang", gpus=1, placement=placement("dra"))
    assert known.ask(pod_json("second", gpus=1), "dra").passed == [], "the node had GPUs when the gang was placed"


def _with_port(name: str, port: int) -> dict[str, Any]:
    pod = pod_json(name)
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
    return pod


def test_a_host_port_that_a_placement_needs_is_kept(known: Known) -> None:
    asked = {"resources": {"nvidia.com/gpu": "2", "hostPort/29500-TCP": "1"}, "cpusPerReplica": 4}
    known.job("gang", gpus=2, placement=placement("n1"), request=asked)
    answer = known.ask(_with_port("service", 29500), "n1", "n2")
    assert answer == Answer(passed=["n2"], refused={"n1": WITHHELD})
    assert known.ask(_with_port("service", 80), "n1", "n2").passed == ["n1", "n2"]
    known.job("gang", gpus=2, phase="Succeeded", placement=placement("n1"), request=asked)
    assert known.ask(_with_port("service", 29500), "n1", "n2").passed == ["n1", "n2"]


def test_of_two_pods_for_the_last_place_beside_a_placement_only_one_passes(known: Known) -> None:
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


def test_the_capacity_follows_the_node(known: Known) -> None:
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
    assert [pod.uid for pod in known.guard.in_flight.pods()] == ["uid-unbound"]
    assert known.ask(pod_json("new", gpus=2), "n1").passed == []
    known.now_s += 5.0
    assert known.ask(pod_json("new", gpus=2), "n1").passed == ["n1"]


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


def _preferring(kind: str, gpus: int = 0) -> dict[str, Any]:
    pod = pod_json("replica", gpus=gpus)
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "triton"}}}
    if kind == "spreading":
        pod["spec"]["topologySpreadConstraints"] = [term | {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]
    else:
        preferred = [{"weight": 100, "podAffinityTerm": term}]
        pod["spec"]["affinity"] = {kind: {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return pod


SOFT = ["nodeAffinity", "podAffinity", "podAntiAffinity", "spreading"]


@pytest.mark.parametrize("kind", SOFT)
def test_what_a_pod_prefers_outweighs_how_many_gpus_are_free(known: Known, kind: str) -> None:
    """One preference is worth up to 200 points in kube-scheduler's sum, and one point of ours 130."""
    known.pod(None, pod_json("a", gpus=4, node="n2"))
    assert known.scores(_preferring(kind), "n1", "n2") == {}, "both have free GPUs"
    known.job("gang", gpus=8, placement=placement("n3"))
    assert known.scores(_preferring(kind), "n1", "n2", "n3", "x") == {"n3": 1}
    assert known.scores(_preferring(kind), "n3") == {}, "all nodes are alike"


@pytest.mark.parametrize("kind", SOFT)
def test_gpu_pods_with_preferences_are_packed_as_far_as_those_leave_it_open(known: Known, kind: str) -> None:
    """No node without free GPUs is ever offered to one, so none scored: eight such pods began eight nodes."""
    assert known.scores(_preferring(kind, gpus=1), "n1", "n2", "n3") == {}, "all nodes are alike"
    known.pod(None, pod_json("a", gpus=1, node="n2"))
    assert known.scores(_preferring(kind, gpus=1), "n1", "n2", "n3", "x") == {"n2": 1}
    known.pod(None, pod_json("b", gpus=4, node="n3"))
    assert known.scores(_preferring(kind, gpus=1), "n1", "n2", "n3") == {"n3": 1}
    known.pod(None, pod_json("c", gpus=3, node="n2"))
    assert known.scores(_preferring(kind, gpus=1), "n1", "n2", "n3") == {"n2": 1, "n3": 1}


@pytest.mark.parametrize(
    "rule",
    [
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    ],
)
def test_a_rule_of_a_pod_takes_nothing_off_the_scores(known: Known, rule: dict[str, Any]) -> None:
    """kube-scheduler offers only the nodes that meet it, and scores none by it."""
    known.pod(None, pod_json("a", gpus=4, node="n2"))
    assert known.scores(pod_json("pinned", spec=rule), "n1", "n2") == {"n2": 4}


def test_where_all_nodes_are_alike_no_score_is_told(known: Known) -> None:
    known.job("gang", gpus=8, placement=placement("n3"))
    assert known.scores(pod_json("foreign"), "n1", "n2") == {}
    assert known.scores(pod_json("foreign")) == {}


def test_ranks_prefer_their_planned_node(known: Known) -> None:
    known.job("gang", placement=placement("n2"))
    assert known.scores(rank_json("gang", 0, "n2"), "n1", "n2") == {"n2": 10}
    assert known.scores(rank_json("gang", 0, "n2"), "n1") == {}
