"""Each invariant that one moment shows: a row that breaks it, and the rows that only look like it."""

from __future__ import annotations

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from coda_lab.checker.invariants import suspicions_in
from coda_lab.checker.report import Invariant
from coda_lab.checker.watch import Kind, put
from tests.lab.checker.checker_objects import (
    NOW,
    affinity,
    found_in,
    job,
    node,
    pending,
    placement,
    pod,
    rank_pod,
    view_of,
)

PAST_COMMIT = "2026-03-01T12:00:30Z"


def running(*nodes: str, gpus: int = 1) -> Json:
    return job(phase="Running", placement=placement(*nodes), gpus=gpus)


def unpinned() -> Json:
    made = rank_pod(0, node=None)
    del made["spec"]["affinity"]
    return made


def half_pinned() -> Json:
    made = rank_pod(0, node=None)
    made["spec"]["affinity"] = affinity(["n1", "n2"])
    return made


def mislabelled() -> Json:
    made = rank_pod(0, node=None)
    made["metadata"]["labels"]["coda.scheduler/rank"] = "first"
    return made


def let_go(pod: Json) -> Json:
    """As `kubectl delete --cascade=orphan` leaves it."""
    del pod["metadata"]["ownerReferences"]
    return pod


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        pytest.param([running("n1"), rank_pod(0)], [], id="as planned"),
        pytest.param([running("n1"), rank_pod(0, pin="n2")], ["is pinned to n2, but its plan says n1"], id="wrong pin"),
        pytest.param([running("n1"), unpinned()], ["is pinned to no single node, but its plan says n1"], id="no pin"),
        pytest.param(
            [running("n1"), half_pinned()], ["is pinned to no single node, but its plan says n1"], id="half a pin"
        ),
        pytest.param(
            [running("n1"), rank_pod(0, node="n2")], ["is bound to n2, but its plan says n1"], id="bound elsewhere"
        ),
        pytest.param([running("n1"), rank_pod(1)], ["is rank 1, but plan j-p1 has 1 ranks"], id="a rank too many"),
        pytest.param(
            [job(placement=placement("n1", state="Committed")), rank_pod(0, node=None)],
            ["exists, but plan j-p1 is not released"],
            id="created before the release",
        ),
        pytest.param(
            [job(), rank_pod(0, node=None)], ["says plan j-p1, but its job has no plan"], id="created without a plan"
        ),
        pytest.param(
            [running("n1"), rank_pod(0, plan="j-p0")],
            ["says plan j-p0, but its job has plan j-p1"],
            id="another plan's",
        ),
        pytest.param([running("n1"), rank_pod(0, attempt=2)], ["is of attempt 2, but the job is at 1"], id="too early"),
        pytest.param([job(attempt=2), rank_pod(0)], ["of attempt 1 lives on, but the job is at 2"], id="left behind"),
        pytest.param([rank_pod(0)], ["lives on, but its job is gone"], id="job gone"),
        pytest.param([let_go(rank_pod(0))], [], id="orphaned on purpose"),
        pytest.param(
            [job(phase="Succeeded", placement=placement("n1")), rank_pod(0)],
            ["lives on, but its job is Succeeded"],
            id="job finished",
        ),
        pytest.param(
            [job(phase="Restarting", placement=placement("n1")), rank_pod(0)],
            ["lives on, but its job is Restarting"],
            id="attempt rolled back",
        ),
        pytest.param(
            [job(phase="Running", placement=placement("n1"), suspend=True), rank_pod(0)],
            ["lives on, but its job is suspended"],
            id="job suspended",
        ),
        pytest.param(
            [job(phase="Running", placement=placement("n1"), deleted=True), rank_pod(0)],
            ["lives on, but its job is being deleted"],
            id="job being deleted",
        ),
        pytest.param(
            [running("n1"), mislabelled()], ["carries a job's uid but no readable attempt and rank"], id="bad label"
        ),
        pytest.param([job(attempt=2), rank_pod(0, deleted=NOW)], [], id="left behind but terminating"),
        pytest.param([job(attempt=2), rank_pod(0, phase="Failed")], [], id="left behind but ended"),
        pytest.param([running("n1"), rank_pod(0, pin="n2", deleted=NOW)], [], id="wrong pin but terminating"),
        pytest.param([pod("stranger")], [], id="no Coda pod"),
    ],
)
def test_c_a_pod_exists_only_as_planned(things: list[Json], expected: list[str]) -> None:
    sentences = [sentence for letter, sentence in found_in(view_of(*things)) if letter == "c"]
    assert [sentence.split(" ", 2)[2] for sentence in sentences] == expected


@pytest.mark.parametrize(
    ("old", "nodes", "broken"),
    [
        pytest.param(rank_pod(0), [node()], True, id="both alive"),
        pytest.param(rank_pod(0, phase="Failed"), [node()], False, id="the old one ended"),
        pytest.param(rank_pod(0, deleted=NOW), [node()], True, id="the old one still terminating on a healthy node"),
        pytest.param(rank_pod(0, deleted=NOW), [node(ready=False)], False, id="terminating on a lost node"),
        pytest.param(rank_pod(0, deleted=NOW), [], False, id="terminating on a node that is gone"),
        pytest.param(
            rank_pod(0, deleted=NOW), [node(ready_since=PAST_COMMIT)], False, id="terminating since its node was lost"
        ),
        pytest.param(rank_pod(0, deleted=NOW, node=None), [node()], False, id="terminating and never bound"),
    ],
)
def test_d_a_job_has_one_live_attempt(old: Json, nodes: list[Json], broken: bool) -> None:
    things = [job(phase="Launched", attempt=2, placement=placement("n2", attempt=2)), rank_pod(0, attempt=2, pin="n2")]
    expected = [("d", "job ns/j: attempts 1, 2 have live pods at the same time")] if broken else []
    assert [each for each in found_in(view_of(*things, *nodes, old)) if each[0] == "d"] == expected


@pytest.mark.parametrize(
    ("phase", "pods", "broken"),
    [
        pytest.param("Launched", [rank_pod(0), rank_pod(1, node=None)], True, id="one bound, one not"),
        pytest.param("Queued", [rank_pod(0)], True, id="one bound, one not created yet"),
        pytest.param("Launched", [rank_pod(0), rank_pod(1)], False, id="all bound"),
        pytest.param("Launched", [rank_pod(0, node=None), rank_pod(1, node=None)], False, id="none bound"),
        pytest.param("Launched", [rank_pod(0, phase="Succeeded"), rank_pod(1)], False, id="one bound and ended"),
        pytest.param(
            "Restarting", [rank_pod(0, deleted=NOW), rank_pod(1, node=None, deleted=NOW)], False, id="all being deleted"
        ),
        pytest.param(
            "Restarting", [rank_pod(0, deleted=NOW), rank_pod(1, node=None)], True, id="only one being deleted"
        ),
        pytest.param("Running", [rank_pod(0), rank_pod(1, node=None)], True, id="said to run by halves"),
    ],
)
def test_e_no_gang_stays_half_bound(phase: str, pods: list[Json], broken: bool) -> None:
    gang = job(phase=phase, placement=placement("n1", "n1", deadline=NOW))
    view = view_of(gang, *pods)
    suspicions = [
        each for each in suspicions_in(view, ("job", "uid-j"), {}) if each.invariant is Invariant.HALF_BOUND_GANG
    ]
    assert [(each.allowance_s, each.not_before_s) for each in suspicions] == ([(2.0, 1772366400.0)] if broken else [])


@pytest.mark.parametrize("hours", [-1, 0])
def test_e_a_deadline_by_a_clock_that_is_behind_counts_from_the_first_pod(hours: int) -> None:
    """The planner's clock is an hour behind: its deadline was over before the gang existed."""
    made_s, length_s = 1772366400.0, 60.0
    committed_s = made_s + 3600 * hours
    plan = placement("n1", "n1", deadline=time_from_seconds(committed_s + length_s))
    plan["committedTime"] = time_from_seconds(committed_s)
    pods = [rank_pod(0, bound=NOW), rank_pod(1, node=None, bound=NOW)]
    view = view_of(job(phase="Launched", placement=plan), *pods)
    (found,) = [
        each for each in suspicions_in(view, ("job", "uid-j"), {}) if each.invariant is Invariant.HALF_BOUND_GANG
    ]
    assert found.not_before_s == made_s + length_s


def test_e_an_older_attempt_is_not_half_bound_any_more() -> None:
    things = [job(attempt=2, placement=placement("n1", "n1")), rank_pod(0), rank_pod(1, node=None)]
    assert "e" not in [letter for letter, _ in found_in(view_of(*things))]


@pytest.mark.parametrize(
    ("waiting", "broken"),
    [
        pytest.param(job(), True, id="no reason"),
        pytest.param(job(attempt=2, placement=placement("n1")), True, id="no reason, and only an old plan"),
        pytest.param(
            job(generation=2, placement=placement("n1")), True, id="no reason, and a plan from before an edit"
        ),
        pytest.param(job(pending=pending()), False, id="a reason"),
        pytest.param(job(placement=placement("n1", state="Committed")), False, id="planned"),
        pytest.param(job(suspend=True), False, id="suspended"),
        pytest.param(job(deleted=True), False, id="being deleted"),
        pytest.param(job(phase=None), False, id="not accepted yet"),
        pytest.param(job(phase="Running"), False, id="not waiting"),
    ],
)
def test_g_a_waiting_job_says_why(waiting: Json, broken: bool) -> None:
    expected = [("g", "job ns/j waits for more than 5 s and status.pending does not say why")] if broken else []
    assert found_in(view_of(waiting)) == expected


def test_a_job_that_changed_during_the_snapshot_is_not_judged() -> None:
    assert found_in(view_of(rank_pod(0), unsteady=frozenset({"uid-j"}))) == []


def test_a_change_marks_only_what_it_touches() -> None:
    view = view_of(node(), node("n2"), job(placement=placement("n2")), rank_pod(0, pin="n2", node=None), pod("a"))
    view.changed.clear()
    put(view, Kind.POD, rank_pod(0, pin="n2"))
    assert view.changed == {("job", "uid-j"), ("node", "n2")}
    view.changed.clear()
    view.drop_pod("uid-a")
    assert view.changed == {("node", "n1")}
    view.changed.clear()
    view.drop_job("uid-j")
    assert view.changed == {("job", "uid-j"), ("node", "n2")}
