import asyncio
from typing import Any

import pytest

from coda.model import Phase
from coda_cli.job_history import Follower, History, Moments, WaitRecord, following, history_after
from tests.cli.worlds import Api, job_json, serving

QUEUED = {"phase": "Queued", "attempt": 1, "queuedTime": "2025-01-01T00:00:01Z", "gpus": 8, "cores": 16}
PENDING = {"code": "InsufficientGPUs", "message": "8 GPUs wanted, 4 free", "since": "2025-01-01T00:00:02Z"}
PLACEMENT = {"attempt": 1, "committedTime": "2025-01-01T00:00:05.250Z", "nodes": ["node-0000", "node-0001"]}


def grown(*statuses: dict[str, Any]) -> History:
    """The history of one job whose status was seen at 10, 11, 12 ... s."""
    history = None
    for number, status in enumerate(statuses):
        history = history_after(history, job_json(status=status), 10.0 + number)
    assert history is not None
    return history


def test_a_job_just_created_waits_and_has_no_phase() -> None:
    history = grown({})
    assert (history.phase, history.gpus, history.cores) == (None, 8, 16)
    assert history.is_waiting
    assert not history.is_over


def test_in_a_phase_of_a_newer_version_it_goes_on_with_what_it_did() -> None:
    newer = {**QUEUED, "phase": "Newer", "placement": PLACEMENT}
    assert grown({**QUEUED, "phase": "Running"}, newer).phase is Phase.RUNNING
    assert grown({**QUEUED, "phase": "Running"}, newer).nodes == ("node-0000", "node-0001")
    assert grown(newer).phase is None
    assert grown(newer, {**newer, "phase": "Succeeded"}).is_over


def test_moments_are_kept_from_the_first_time_they_were_seen_on_both_clocks() -> None:
    running = {**QUEUED, "phase": "Running", "placement": PLACEMENT, "startTime": "2025-01-01T00:00:07Z"}
    over = {**running, "phase": "Succeeded", "completionTime": "2025-01-01T00:00:09Z"}
    history = grown({}, QUEUED, {**QUEUED, "placement": PLACEMENT}, running, running, over)
    assert history.seen == Moments(queued_s=11.0, placed_s=12.0, started_s=13.0, finished_s=15.0)
    assert history.reported == Moments(
        queued_s=1735689601.0, placed_s=1735689605.25, started_s=1735689607.0, finished_s=1735689609.0
    )
    assert history.nodes == ("node-0000", "node-0001")
    assert history.is_over


def test_every_reason_is_kept_once_in_order_and_the_current_one_goes_with_the_wait() -> None:
    other = {**PENDING, "code": "BackingOff", "message": "starts again soon"}
    history = grown(
        {**QUEUED, "pending": PENDING},
        {**QUEUED, "pending": other},
        {**QUEUED, "pending": PENDING},
        {**QUEUED, "phase": "Launched", "placement": PLACEMENT},
    )
    assert history.reasons == (
        WaitRecord(code="InsufficientGPUs", message="8 GPUs wanted, 4 free", seen_s=10.0),
        WaitRecord(code="BackingOff", message="starts again soon", seen_s=11.0),
    )
    assert history.pending is None
    assert not history.is_waiting


def test_a_second_attempt_counts_and_does_not_move_the_first_start() -> None:
    running = {**QUEUED, "phase": "Running", "placement": PLACEMENT, "startTime": "2025-01-01T00:00:07Z"}
    again = {**QUEUED, "attempt": 2, "failures": 1}
    history = grown(running, {**running, "phase": "Restarting"}, again)
    assert (history.attempt, history.failures, history.seen.started_s) == (2, 1, 10.0)
    assert history.nodes == ("node-0000", "node-0001")


@pytest.mark.parametrize(
    ("code", "hopeless"),
    [("NeverFits", True), ("NoMatchingNode", True), ("UnknownTopologyLevel", True), ("InsufficientGPUs", False)],
)
def test_some_reasons_are_mended_by_no_waiting(code: str, hopeless: bool) -> None:
    assert grown({**QUEUED, "pending": {**PENDING, "code": code}}).is_hopeless is hopeless


def test_auto_cores_are_unknown_until_the_status_tells() -> None:
    assert history_after(None, job_json(cpusPerReplica="auto"), 1.0).cores == 0


async def test_the_follower_hears_of_changes_and_of_a_deletion() -> None:
    api = Api()
    await api.put(job_json(status=QUEUED), "ADDED")
    async with serving(api) as client, following(client, "default", selector="") as follower:
        assert set(follower.by_name) == {"hv1"}
        await api.set_status("hv1", phase="Running", startTime="2025-01-01T00:00:07Z")
        await until(follower, lambda: follower.by_name["hv1"].phase is Phase.RUNNING)
        await api.put(api.jobs["hv1"], "DELETED")
        await until(follower, lambda: follower.by_name["hv1"].deleted)
        assert follower.by_name["hv1"].is_over


async def until(follower: Follower, holds: Any) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await follower.change(1.0)


def test_room_is_free_once_the_last_pod_of_a_job_has_ended() -> None:
    clock_s = [0.0]
    follower = Follower(now=lambda: clock_s[-1])

    def pod(name: str, phase: str, job: str = "hv1") -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {"coda.scheduler/job": job}}, "status": {"phase": phase}}

    follower.on_job(None, job_json("hv1"))
    moments = []
    for at_s, old, new in (
        (1.0, None, pod("hv1-1-0", "Running")),
        (2.0, pod("hv1-1-0", "Running"), pod("hv1-1-0", "Succeeded")),
        (3.0, pod("hv1-1-0", "Succeeded"), pod("hv1-1-0", "Succeeded")),
        (4.0, pod("hv1-1-1", "Running"), pod("hv1-1-1", "Failed")),
        (5.0, None, pod("other-1-0", "Succeeded", "other")),
        (6.0, pod("hv1-1-1", "Failed"), None),
    ):
        clock_s.append(at_s)
        follower.on_pod(old, new)
        moments.append(follower.by_name["hv1"].freed_s)
    assert moments == [None, 2.0, 2.0, 4.0, 4.0, 4.0]
