"""A gang over several nodes: the hungriest rank decides, and without a word of every rank nothing is taken away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.allocator import SearchOutcome, TuningPhase
from coda.allocator.ranks import RankReport
from coda.allocator.window_samples import DISTURBED, RANKS_UNKNOWN, WindowResult
from coda_agent.cluster import Peers, ranks_json
from coda_agent.tuning.gang import Gang
from coda_kube.objects.json_types import Json
from tests.agent.tuning.gangs import UID, GangOfNodes

FOUND, SILENT = TuningPhase.TUNED, TuningPhase.STOPPED


@pytest.mark.parametrize(
    ("needs", "start", "expected"),
    [
        pytest.param((4, 10), 8, 10, id="the other rank starves, rank 0 does not"),
        pytest.param((10, 4), 8, 10, id="rank 0 starves"),
        pytest.param((4, 10), 16, 10, id="the other rank ends the way down"),
        pytest.param((4, 4, 7, 4), 12, 7, id="one of four"),
        pytest.param((4, 4), 8, 4, id="both do with fewer"),
    ],
)
async def test_the_hungriest_rank_decides(needs: tuple[int, ...], start: int, expected: int) -> None:
    gang = GangOfNodes(needs, start)
    await gang.until(FOUND)
    assert gang.found.outcome is SearchOutcome.FOUND
    assert abs(gang.cores - expected) <= 1


async def test_a_gang_reads_each_profile_once_per_window() -> None:
    gang = GangOfNodes((4, 4, 4), 8)
    await gang.until(FOUND)
    await gang.run(100)
    before = gang.reads
    await gang.run(900)
    assert gang.reads - before <= 2 * 10 + 2  # two other nodes, ten windows


@pytest.mark.parametrize("away", [False, True], ids=["no agent there", "no API server"])
async def test_without_a_word_of_a_rank_nothing_changes_and_the_job_says_so(away: bool) -> None:
    gang = GangOfNodes((4, 4), 8, dead={1}, away=away)
    await gang.run(300)
    tuning = gang.job.tuning
    assert tuning is not None
    assert (tuning.phase, tuning.reason) == (TuningPhase.MEASURING, RANKS_UNKNOWN)
    assert tuning.message == "the agent of rank 1 did not report in the last window: it is measured again"
    await gang.until(SILENT)
    assert set(gang.tried) == {8}
    assert "the agent of rank 1 did not report" in gang.job.tuning.message  # type: ignore[union-attr]
    gang.away = False
    gang.restart(1)
    await gang.until(FOUND)
    assert abs(gang.cores - 4) <= 1


async def test_an_agent_that_dies_while_fewer_cores_are_tried_gives_them_back() -> None:
    gang = GangOfNodes((4, 10), 16)
    await gang.until(TuningPhase.WISHING)
    await gang.run(5)
    assert gang.cores < 16
    gang.dead.add(1)
    await gang.until(SILENT, limit_s=900)
    assert gang.cores == 16
    await gang.run(7200)
    assert gang.cores == 16
    gang.restart(1)
    await gang.until(FOUND)
    assert abs(gang.cores - 10) <= 1


async def test_an_agent_that_dies_after_the_answer_changes_nothing() -> None:
    gang = GangOfNodes((4, 10), 16)
    await gang.until(FOUND)
    gang.dead.add(1)
    cores = gang.cores
    await gang.run(3 * 3600)
    assert set(gang.tried[-3 * 3600 :]) == {cores}


async def test_agents_that_start_again_cost_a_window_or_two() -> None:
    steady, restarted = GangOfNodes((4, 10), 16), GangOfNodes((4, 10), 16)
    await steady.until(FOUND)
    await restarted.run(150)
    restarted.restart(1)
    await restarted.run(150)
    restarted.restart_first()
    await restarted.until(FOUND)
    assert restarted.cores == steady.cores
    assert restarted.now_s - steady.now_s <= 5 * 120


async def test_a_disturbed_window_is_measured_again_and_standing_contention_ends_the_search() -> None:
    """Wherever in the gang it was."""
    once = GangOfNodes((4, 4), 8, disturbed_at_s=lambda rank, now_s: 70.0 if rank == 1 and now_s >= 70 else None)
    await once.until(FOUND)
    assert DISTURBED in [tuning.reason for tuning in once.answers]
    assert abs(once.cores - 4) <= 1
    always = GangOfNodes((4, 10), 16)
    await always.until(TuningPhase.WISHING)
    always.disturbed_at_s = lambda rank, now_s: now_s if rank == 1 else None
    await always.until(SILENT, limit_s=900)
    assert always.cores == 16


def report(**changed: object) -> RankReport:
    usual = RankReport(job_uid=UID, attempt=1, rank=1, cores=8, window=7, result=WindowResult(reading=None))
    return replace(usual, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "belongs"),
    [
        pytest.param({"window": 8}, True, id="another window than was known"),
        pytest.param({"window": 3}, True, id="of an agent that started again"),
        pytest.param({}, False, id="the one that was known"),
        pytest.param({"window": 8, "cores": 9}, False, id="at other cores"),
        pytest.param({"window": 8, "attempt": 2}, False, id="of another attempt"),
        pytest.param({"window": 8, "job_uid": "uid-other"}, False, id="of another job"),
        pytest.param({"window": 8, "rank": 2}, False, id="of a rank that is on another node"),
    ],
)
async def test_which_report_belongs_to_the_present_window(changed: dict[str, object], belongs: bool) -> None:
    gang = GangOfNodes((4, 4), 8)
    gang.profiles["n1"] = {"status": {"ranks": ranks_json([report()])}}
    gang.dead.add(1)
    await gang.run(5)  # the first window has begun, and what was there is known
    gang.profiles["n1"] = {"status": {"ranks": ranks_json([report(**changed)])}}
    for _ in range(20):
        await gang.run(1)
        found, missing = gang.gang.results(gang.job)
    assert (len(found), missing) == ((1, []) if belongs else (0, [1]))


async def test_a_rank_beside_rank_0_needs_no_profile() -> None:
    async def none(_node: str) -> Json | None:
        raise AssertionError("nobody is to be asked")

    gang = GangOfNodes((4, 4), 8)
    job = replace(gang.job, nodes=("n0", "n0"))
    here = Gang("n0", Peers(none, lambda: 0.0))
    here.see((report(),), [job])
    here.begin(job)
    assert here.results(job) == ([], [1])
    here.see((report(window=8),), [job])
    assert here.results(job) == ([WindowResult(reading=None)], [])
