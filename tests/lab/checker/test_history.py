"""What only single changes show: a rank started twice, and reasons rewritten for nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from coda_kube.objects.json_types import Json
from coda_lab.checker.history import History
from coda_lab.checker.objects import read_job, read_pod
from tests.lab.checker.checker_objects import job, pending, placement, rank_pod

LATER = "2026-03-01T12:00:09Z"


def sentences(history: History, pods: list[Json]) -> list[str]:
    breaches = [history.see_pod(read_pod(pod), 0.0) for pod in pods]
    return [breach.sentence for breach in breaches if breach is not None]


@pytest.mark.parametrize(
    ("pods", "breaches"),
    [
        pytest.param([rank_pod(0, uid="a", started=True), rank_pod(0, uid="b", started=True)], 1, id="started twice"),
        pytest.param([rank_pod(0, uid="a"), rank_pod(0, uid="b", started=True)], 0, id="the first never started"),
        pytest.param([rank_pod(0, uid="a", started=True), rank_pod(0, uid="b")], 0, id="the second never started"),
        pytest.param([rank_pod(0, uid="a", started=True), rank_pod(0, uid="a", started=True)], 0, id="the same pod"),
        pytest.param([rank_pod(0, started=True), rank_pod(1, started=True)], 0, id="two ranks"),
        pytest.param([rank_pod(0, started=True), rank_pod(0, attempt=2, started=True)], 0, id="two attempts"),
        pytest.param(
            [
                rank_pod(0, uid="a", started=True),
                rank_pod(0, uid="b", started=True),
                rank_pod(0, uid="b", started=True),
            ],
            1,
            id="reported once",
        ),
    ],
)
def test_f_nothing_is_started_twice(pods: list[Json], breaches: int) -> None:
    expected = ["pod ns/j-1-0: rank 0 of attempt 1 was started 2 times, as pods a, b"]
    assert sentences(History(), pods) == expected * breaches


def test_f_is_forgotten_with_the_job() -> None:
    history = History()
    assert sentences(history, [rank_pod(0, uid="a", started=True)]) == []
    history.forget_job("uid-j")
    assert sentences(history, [rank_pod(0, uid="b", started=True)]) == []


def rewrites(states: list[Json], *, gap_at: int | None = None) -> list[int]:
    """The indices of the states that are a breach; one state each 5 s."""
    history = History()
    breaches = [history.see_job(read_job(each), 5.0 * i, gap=i == gap_at) for i, each in enumerate(states)]
    return [i for i, breach in enumerate(breaches) if breach is not None]


BARE, FIRST, AGAIN = job(), job(pending=pending()), job(pending=pending(since=LATER))


@pytest.mark.parametrize(
    ("states", "breaches"),
    [
        pytest.param([BARE, FIRST, AGAIN], [2], id="only since changed"),
        pytest.param([BARE, FIRST, FIRST], [], id="another field of the job changed"),
        pytest.param([BARE, FIRST, job(pending=pending(numbers={"free": 3}))], [], id="the numbers changed"),
        pytest.param([BARE, FIRST, job(pending=pending(holders=["ns/k"]))], [], id="the holders changed"),
        pytest.param([BARE, FIRST, job(pending=pending("NeverFits"))], [], id="the code changed"),
        pytest.param([BARE, FIRST, BARE, AGAIN], [], id="withdrawn in between"),
        pytest.param([FIRST, AGAIN], [], id="the first may be left from an earlier wait"),
        pytest.param(
            [BARE, FIRST, job(attempt=2, pending=pending()), job(attempt=2, pending=pending(since=LATER))],
            [],
            id="the next attempt waits anew",
        ),
        pytest.param(
            [BARE, FIRST, job(pending=pending(), placement=placement("n1", state="Committed")), FIRST, AGAIN],
            [],
            id="a dropped plan waits anew",
        ),
    ],
)
def test_g_a_reason_is_rewritten_only_when_it_changes(states: list[Json], breaches: list[int]) -> None:
    assert rewrites(states) == breaches


def test_g_states_missed_in_a_gap_are_not_held_against_the_planner() -> None:
    assert rewrites([BARE, FIRST, AGAIN], gap_at=2) == []


@pytest.mark.parametrize(
    ("every_s", "for_s", "breaches"),
    [
        pytest.param(0.5, 12.0, 1, id="twice a second for 12 s: reported once"),
        pytest.param(0.5, 9.0, 0, id="twice a second for 9 s"),
        pytest.param(1.0, 60.0, 0, id="once a second for a minute"),
    ],
)
def test_g_a_reason_is_not_rewritten_in_a_hot_loop(every_s: float, for_s: float, breaches: int) -> None:
    history = History()
    moments_s = [i * every_s for i in range(int(for_s / every_s) + 1)]
    assert all(later > earlier for earlier, later in pairwise(moments_s))
    seen = [
        history.see_job(read_job(job(pending=pending(numbers={"free": i}))), now_s) for i, now_s in enumerate(moments_s)
    ]
    assert [each.sentence for each in seen if each is not None] == [
        "job ns/j: status.pending was rewritten more often than every 1 s for over 10 s"
    ] * breaches


def test_counts_attempts_and_released_plans_once() -> None:
    history = History()
    for attempt in (1, 2):
        plan = placement("n1", attempt=attempt)
        for phase in ("Queued", "Launched"):
            history.see_job(read_job(job(phase=phase, attempt=attempt, placement=plan)), 0.0)
        for rank in (0, 1):
            history.see_pod(read_pod(rank_pod(rank, attempt=attempt)), 0.0)
    assert (history.attempts, history.plans) == (2, 2)
