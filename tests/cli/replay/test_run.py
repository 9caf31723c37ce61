import asyncio
import io

import pytest
from rich.console import Console

from coda.errors import InvalidInput
from coda.model import Phase
from coda_cli.progress import ReplayDisplay
from coda_cli.replay.metrics import JobOutcome
from coda_cli.replay.run import Replayed, ReplayLimits, replay
from coda_cli.replay.submissions import Submission
from tests.cli.worlds import MANNER, Api, gang, serving, submissions

PLACEMENT = {"attempt": 1, "committedTime": "2025-01-01T00:00:05Z", "nodes": ["node-0000"]}
QUEUED = {"phase": "Queued", "attempt": 1, "queuedTime": "2025-01-01T00:00:01Z"}


async def operate(api: Api, statuses: dict[str, list[dict[str, object]]]) -> None:
    """Plays operator and planner: walks each job through its statuses once it is created."""
    while any(statuses.values()):
        await api.created.wait()
        api.created.clear()
        for name in [name for name in statuses if name in api.jobs]:
            for status in statuses.pop(name):
                await api.set_status(name, **status)


async def replayed_with(
    jobs: tuple[Submission, ...], statuses: dict[str, list[dict[str, object]]], limits: ReplayLimits | None = None
) -> tuple[Replayed, str]:
    api, said = Api(), io.StringIO()
    operator = asyncio.create_task(operate(api, statuses))
    try:
        async with serving(api) as client, asyncio.timeout(20):
            with ReplayDisplay(Console(file=said, width=200)) as display:
                return await replay(client, jobs, MANNER, display, limits or ReplayLimits()), said.getvalue()
    finally:
        operator.cancel()


def ran(phase: str = "Succeeded") -> list[dict[str, object]]:
    return [
        QUEUED,
        {"placement": PLACEMENT},
        {"phase": "Running", "startTime": "2025-01-01T00:00:06Z"},
        {"phase": phase, "completionTime": "2025-01-01T00:00:07Z"},
    ]


async def test_a_replay_ends_when_every_job_is_over_or_can_never_start() -> None:
    never: dict[str, object] = {
        "pending": {"code": "NeverFits", "message": "too large", "since": "2025-01-01T00:00:02Z"}
    }
    jobs = submissions(gang("ok"), gang("bad", submit_s=5), gang("huge", submit_s=10))
    replayed, said = await replayed_with(jobs, {"ok": ran(), "bad": ran("Failed"), "huge": [QUEUED, never]})
    assert replayed.stopped is None
    assert {job.submission.name: job.outcome for job in replayed.jobs} == {
        "ok": JobOutcome.FINISHED,
        "bad": JobOutcome.FAILED,
        "huge": JobOutcome.REFUSED,
    }
    assert "0/3 submitted" in said
    assert all(job.start_wait_s is not None for job in replayed.jobs[:2])


async def test_a_replay_out_of_time_says_so_and_keeps_what_it_saw() -> None:
    replayed, _ = await replayed_with(submissions(gang("stuck")), {"stuck": [QUEUED]}, ReplayLimits(timeout_s=0.5))
    assert replayed.stopped == "the time given (--timeout) was over, with 1 job unfinished"
    (job,) = replayed.jobs
    assert job.history is not None
    assert job.history.phase is Phase.QUEUED


async def test_a_replay_in_which_nothing_moves_any_more_ends_by_itself() -> None:
    replayed, _ = await replayed_with(
        submissions(gang("stuck", duration_s=1)), {"stuck": [QUEUED]}, ReplayLimits(patience_s=0.3)
    )
    assert replayed.stopped == "nothing changed for 0.3 s, with 1 job unfinished"


async def test_a_replay_ends_soon_after_a_part_of_its_cluster_died_for_good() -> None:
    limits = ReplayLimits(restart_s=0.1, ended_parts=lambda: ("operator-0",))
    replayed, _ = await replayed_with(submissions(gang("stuck")), {"stuck": [QUEUED]}, limits)
    assert replayed.stopped == "operator-0 of the local control plane ended, with 1 job unfinished"


async def test_a_cluster_without_training_jobs_is_one_clear_sentence() -> None:
    manner = type(MANNER)(namespace="a/b", run="r", speed=1.0, image="i")
    display = ReplayDisplay(Console(file=io.StringIO()))
    async with serving(Api()) as client:
        with pytest.raises(InvalidInput, match="does not know TrainingJobs: install Coda first"):
            await replay(client, submissions(gang()), manner, display, ReplayLimits())
