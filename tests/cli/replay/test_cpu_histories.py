from typing import Any

import pytest

from coda.model import Phase
from coda_cli.job_history import History, WaitRecord
from coda_cli.replay.cpu_histories import Attempt, attempt_after, history_of
from tests.cli.worlds import gang

PLANNED = {"coda.scheduler/planned-time": "1970-01-01T00:00:05Z"}
GATED: dict[str, Any] = {}
PLACED: dict[str, Any] = {"annotations": PLANNED}
RUNS: dict[str, Any] = {**PLACED, "phase": "Running", "node": "n1"}
DELETED = {**RUNS, "deleted": True}


def pod(
    *, annotations: dict[str, str] | None = None, phase: str = "Pending", node: str = "", deleted: bool = False
) -> Any:
    metadata: dict[str, Any] = {"name": "c1-0-1", "annotations": annotations or {}}
    if deleted:
        metadata["deletionTimestamp"] = "1970-01-01T00:00:09Z"
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


def grown(*seen: dict[str, Any] | None, run_s: float = 20.0, number: int = 1) -> Attempt:
    """An attempt whose pod was seen at 1, 2, 3 ... s."""
    attempt = Attempt(number=number, run_s=run_s, queued_s=1.0)
    for now_s, one in enumerate(seen, 1):
        attempt = attempt_after(attempt, None if one is None else pod(**one), float(now_s))
    return attempt


def history(*attempts: Attempt, replicas: int = 1, reasons: tuple[WaitRecord, ...] = ()) -> History:
    return history_of("c1", gang("c1", gpus=0, replicas=replicas), {0: attempts}, reasons)


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        pytest.param([GATED], Phase.QUEUED, id="gated"),
        pytest.param([PLACED], Phase.RUNNING, id="released"),
        pytest.param([RUNS], Phase.RUNNING, id="runs"),
        pytest.param([DELETED], Phase.RUNNING, id="is being stopped"),
        pytest.param([DELETED, {**DELETED, "phase": "Failed"}], Phase.QUEUED, id="was stopped"),
        pytest.param([DELETED, None], Phase.QUEUED, id="is gone"),
        pytest.param([GATED, None], Phase.QUEUED, id="deleted at the gate"),
        pytest.param([{**RUNS, "phase": "Failed"}], Phase.FAILED, id="failed by itself"),
        pytest.param([{**RUNS, "phase": "Succeeded"}], Phase.SUCCEEDED, id="succeeded"),
        pytest.param([{**RUNS, "phase": "Succeeded"}, None], Phase.SUCCEEDED, id="succeeded, and is gone"),
        pytest.param(
            [DELETED, {**DELETED, "phase": "Succeeded"}], Phase.SUCCEEDED, id="succeeded while it was stopped"
        ),
    ],
)
def test_the_phase_of_a_cpu_job_is_that_of_its_pod(seen: list[dict[str, Any] | None], phase: Phase) -> None:
    assert history(grown(*seen)).phase is phase


def test_moments_are_those_of_the_first_pod_and_the_end_is_that_of_the_last() -> None:
    first = grown(GATED, PLACED, RUNS, DELETED, {**DELETED, "phase": "Failed"})
    second = grown(GATED, {**RUNS, "annotations": {**PLANNED, "coda.scheduler/planned-time": "1970-01-01T00:00:10Z"}})
    second = attempt_after(second, pod(**{**RUNS, "phase": "Succeeded"}), 30.0)
    found = history(first, second)
    assert (found.seen.queued_s, found.seen.placed_s, found.seen.started_s, found.seen.finished_s) == (1, 2, 3, 30)
    assert found.reported.placed_s == 5.0
    assert (found.stops, found.freed_s, found.nodes) == (1, 30.0, ("n1",))
    assert found.phase is Phase.SUCCEEDED


def test_what_it_waited_after_a_stop_is_from_the_stop_to_the_next_placement() -> None:
    stopped = grown(RUNS, DELETED, None)
    again = grown({"annotations": {"coda.scheduler/planned-time": "1970-01-01T00:00:42Z"}})
    assert history(stopped, again).waited_again_s == 40.0
    assert history(stopped, grown(GATED)).waited_again_s == 0.0


def test_what_is_left_counts_from_the_placement_to_the_stop() -> None:
    stopped = attempt_after(grown(RUNS, run_s=20.0), pod(**DELETED), 12.0)
    assert stopped.left_s == 13.0
    assert attempt_after(grown(GATED, run_s=20.0), None, 12.0).left_s == 20.0


def test_a_job_of_several_pods_is_placed_and_over_with_its_last() -> None:
    done, waits = grown({**RUNS, "phase": "Succeeded"}), grown(GATED)
    two = gang("c1", gpus=0, replicas=2)
    half = history_of("c1", two, {0: (done,)}, ())
    assert (half.phase, half.seen.placed_s, half.cores) == (Phase.QUEUED, None, 8)
    assert history_of("c1", two, {0: (done,), 1: (waits,)}, ()).phase is Phase.QUEUED
    assert history_of("c1", two, {0: (done,), 1: (done,)}, ()).phase is Phase.SUCCEEDED


def test_the_last_reason_stands_while_it_waits() -> None:
    full = WaitRecord(code="InsufficientCPU", message="too few cores", seen_s=2.0)
    assert history(grown(GATED), reasons=(full,)).pending == full
    assert history(grown(RUNS), reasons=(full,)).pending is None
