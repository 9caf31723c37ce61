"""Which runs are remembered of a node: as many as prove what all of them prove, whatever is short among them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coda.correlation.suspect_nodes import SAID_USERS, NodeEvidence, NodeFailure, NodeRun, suspect_nodes
from coda_kube.failures.node_failures import NodeFailures, node_runs_from_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds

BEGIN_S = 1_700_000_000.0


def run(number: int, began_s: int, lasted_s: int, node: str = "n1") -> Json:
    status = {
        "phase": "Succeeded",
        "attempt": 1,
        "launchTime": time_from_seconds(BEGIN_S + began_s),
        "completionTime": time_from_seconds(BEGIN_S + began_s + lasted_s),
        "placement": {"attempt": 1, "nodes": [node]},
    }
    return {
        "metadata": {"uid": f"u{number}", "name": f"u{number}", "namespace": "a"},
        "spec": {"gpusPerReplica": 1},
        "status": status,
    }


def said(users: int, at_s: float) -> list[NodeFailure]:
    return [
        NodeFailure(uid=f"f{number}", owner=f"o{number}", node="n1", reason="CUDA init failed", time_s=BEGIN_S + at_s)
        for number in range(users)
    ]


def remembered(jobs: list[Json], now_s: float) -> list[NodeRun]:
    failures = NodeFailures()
    for job in jobs:
        failures.see(job, now_s)
    return [*failures.runs()]


def test_a_short_run_does_not_take_the_place_of_the_one_that_ended_the_probation() -> None:
    """Four users failed there; the hour is over, and a run of ten minutes succeeded. Then one of 15 s did."""
    now_s = BEGIN_S + 5000
    kept = remembered([run(1, 3700, 600), run(2, 4400, 15)], now_s)
    one_more = NodeFailure(uid="new", owner="new", node="n1", reason="CUDA init failed", time_s=now_s - 10)
    verdict = suspect_nodes(NodeEvidence(failures=[*said(SAID_USERS, 0), one_more], runs=kept), 40, now_s)
    assert (verdict.cordons, verdict.probation) == ((), frozenset())


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 900)), max_size=12),
    st.lists(st.integers(0, 9000), max_size=6),
    st.sampled_from([60.0, 600.0, 3600.0, 21600.0]),
)
def test_what_is_remembered_decides_as_all_runs_do(
    runs: list[tuple[int, int]], failed_s: list[int], cordon_s: float
) -> None:
    now_s = BEGIN_S + 10_000
    jobs = [run(number, *times) for number, times in enumerate(runs)]
    every = [one for job in jobs for one in node_runs_from_json(job)]
    failures = [one for at_s in failed_s for one in said(SAID_USERS, at_s)]
    verdicts = [
        suspect_nodes(NodeEvidence(failures=failures, runs=known), 40, now_s, cordon_s=cordon_s)
        for known in (every, remembered(jobs, now_s), remembered(jobs[::-1], now_s))
    ]
    assert verdicts[0] == verdicts[1] == verdicts[2]


def test_of_many_runs_few_are_remembered() -> None:
    alike = [run(number, 10 * number, 600) for number in range(500)]
    assert len(remembered(alike, BEGIN_S + 6000)) == 1
    assert remembered(alike, BEGIN_S + 10 * 86400) == []


def test_nodes_of_an_autoscaler_are_forgotten() -> None:
    """Each minute a job ends on a node of its own, and one on a node that stays."""
    failures = NodeFailures()
    for number in range(1000):
        for node in ("stays", f"n{number}"):
            failures.see(run(number, 60 * number, 30, node), BEGIN_S + 60 * number + 30)
    assert len([*failures.runs()]) == 6 * 60 + 1


def test_a_job_that_rank_zero_ended_before_all_ranks_started_proves_nothing_of_their_nodes() -> None:
    job = run(1, 3700, 600)
    job["spec"]["successPolicy"] = "RankZero"
    assert node_runs_from_json(job) == ()
    job["status"]["startTime"] = job["status"]["launchTime"]
    assert [one.node for one in node_runs_from_json(job)] == ["n1"]
