"""The arrays inside a simulation: GPU jobs give cores back while they run, and the division follows finished jobs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from coda.cycle import decide
from coda.history.division import CORES_STEP, EVERY_S, SHARE_STEP
from coda.model import Decision, World
from coda.policy import ArraysConfig, PolicyConfig
from coda_sim.engine import Costs, Simulation, SimulationConfig
from coda_sim.workload import Cores, JobModelDraws, gangs_from_rows, profile_set, shape_from_text
from tests.sim.simulating import only, simulated, spans
from tests.sim.worlds import row

ROWS = [
    row("train", cpus=1, duration_s=20_000),
    row("cpu", gpus=0, cpus=5, submit_s=2000, duration_s=100),
]


def coda(*, takes_back: bool) -> PolicyConfig:
    arrays = ArraysConfig(reserve_cores_per_gpu=2, takes_back=takes_back)
    return PolicyConfig(policy="coda", levels=(), arrays=arrays)


def test_a_cpu_job_gets_its_arrays_cores_at_once_and_the_gpu_job_has_them_again_after_it() -> None:
    """DeepSpeech is best with 4 cores, of which 2 are its array's; of 8 the CPU job wants 5."""
    log = simulated(ROWS, "1x1x8", config=coda(takes_back=True), traits=only("DeepSpeech"), allocator=True)
    assert spans(log)["cpu"] == [(2000, 2100)]
    train = next(entry for entry in log.entries if entry.gang.row.job_id == "train")
    after = [(piece.start_s, piece.cores) for piece in train.pieces if piece.start_s >= 2000]
    assert after == [(2000, 3), (2180, 4)]
    assert all(piece.attempt == 1 for piece in train.pieces)


def test_else_it_waits_for_the_end_of_the_gpu_job() -> None:
    log = simulated(ROWS, "1x1x8", config=coda(takes_back=False), traits=only("DeepSpeech"), allocator=True)
    ends_s = spans(log)["train"][-1][1]
    assert spans(log)["cpu"] == [(ends_s, ends_s + 100)]


def test_cores_taken_back_within_a_window_are_wished_for_at_its_end() -> None:
    early = [ROWS[0], row("cpu", gpus=0, cpus=6, submit_s=400, duration_s=10)]
    log = simulated(early, "1x1x8", config=coda(takes_back=True), traits=only("DeepSpeech"), allocator=True)
    assert spans(log)["cpu"] == [(400, 410)]
    train = next(entry for entry in log.entries if entry.gang.row.job_id == "train")
    assert train.pieces[-1].cores == 4


def test_the_division_follows_what_finished_jobs_used_in_steps() -> None:
    """70 small jobs with 4 cores each: the reserve of 8 per GPU and the 70 % for large jobs shrink, a step an hour."""
    seen: list[tuple[float, float, float]] = []

    def watched(world: World, config: PolicyConfig, now_s: float, *cache: Any, **more: Any) -> Decision:
        for quota in world.array_quotas:
            assert quota.reserve_cores_per_gpu is not None
            assert quota.large_share is not None
            seen.append((now_s, quota.reserve_cores_per_gpu, quota.large_share))
        return decide(world, config, now_s, *cache, **more)

    shape, profiles = shape_from_text("1x4x32"), profile_set("paper")
    rows = tuple(row(f"a{number:02}", cpus=1, duration_s=6000, submit_s=600 * number) for number in range(90))
    gangs, _ = gangs_from_rows(rows, shape, Cores())
    planner = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=8))
    config = SimulationConfig(
        shape=shape,
        profiles=profiles,
        planner=planner,
        costs=Costs(),
        allocator=True,
        divides_from_history=True,
    )
    models = JobModelDraws(profiles, only("DeepSpeech"), seed=0)
    log = Simulation(config, gangs, models, decide=watched).run()
    assert all(entry.end_s is not None for entry in log.entries)
    steps = [one for before, one in pairwise([(0.0, 8.0, 0.7), *seen]) if one[1:] != before[1:]]
    assert steps[0][1] == 8 - CORES_STEP
    assert steps[0][2] == pytest.approx(0.7 - SHARE_STEP)
    assert all(after[0] - before[0] >= EVERY_S for before, after in pairwise(steps))
    assert all(after[1] <= before[1] and after[2] < before[2] for before, after in pairwise(steps))
    assert steps[-1][1] >= 4
