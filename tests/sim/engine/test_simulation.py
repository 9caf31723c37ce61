import random
from dataclasses import replace

import pytest

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import Decision, World
from coda.model.consistency import check
from coda.policy import PolicyConfig
from coda.promises import PromiseBook
from coda_sim.traces import Row
from coda_sim.workload import MonthConfig
from coda_sim.workload.month import coda_month
from tests.sim.simulating import only, simulated, simulated_under, spans
from tests.sim.worlds import row

pytestmark = pytest.mark.heavy

SMALL_MONTH = MonthConfig(days=1, gpu_jobs=250, cpu_jobs=750, cluster="6x8x28,8x4x28")


def small_month(seed: int = 1) -> tuple[Row, ...]:
    return coda_month(SMALL_MONTH, seed=seed)


def test_a_job_that_finds_no_room_starts_when_another_ends() -> None:
    first = row("a1", gpus=3, cpus=3, submit_s=0, duration_s=100)
    second = row("a2", gpus=2, cpus=2, submit_s=10, duration_s=50)
    log = simulated([first, second], "1x4x8", traits=only("Transformer"))
    assert spans(log) == {"a1": [(0, 100)], "a2": [(100, 150)]}


def test_a_later_job_that_fits_passes_one_that_does_not() -> None:
    large = row("a2", gpus=4, cpus=4, submit_s=10, duration_s=50)
    small = row("a3", gpus=1, cpus=1, submit_s=20, duration_s=30)
    log = simulated([row("a1", gpus=3, cpus=3, duration_s=100), large, small], "1x4x8")
    assert spans(log) == {"a1": [(0, 100)], "a2": [(100, 150)], "a3": [(20, 50)]}


@pytest.mark.parametrize("policy", ["arrival", "fifo-skip", "coda"])
def test_jobs_of_one_pod_fill_a_node_so_that_a_whole_one_is_left(policy: str) -> None:
    rows = [row("a1", gpus=4, cpus=4), row("a2", gpus=2, cpus=2, submit_s=10), row("a3", gpus=8, cpus=8, submit_s=20)]
    log = simulated_under(policy, [replace(one, duration_s=1000) for one in rows], "2x8x48")
    starts_s = {job: first for job, ((first, _), *_) in spans(log).items()}
    assert starts_s == {"a1": 0, "a2": 10, "a3": 20}


def test_a_training_job_slows_down_beside_a_heavy_neighbour_and_recovers() -> None:
    # Alexnet wants 12 GB/s, the CPU job 244: all 256 GB/s of the node, where Alexnet loses 30 % of its speed.
    traits = only("Alexnet", cpu_gb_per_s=244.0)
    training = row("a1", gpus=1, cpus=4, submit_s=0, duration_s=1000)
    neighbour = row("a2", gpus=0, cpus=1, submit_s=100, duration_s=100)
    log = simulated([training, neighbour], "1x4x8", traits=traits)
    # 100 s at full speed, 100 s at 70 %, the other 830 s at full speed again
    assert spans(log)["a2"] == [(100, 200)]
    assert spans(log)["a1"] == [pytest.approx((0, 1030))]


def test_ranks_on_several_nodes_run_at_the_recorded_pace_until_a_neighbour_comes() -> None:
    gang = row("a1", gpus=2, cpus=4, nodes=2, duration_s=1000)
    alone = simulated([gang], "2x1x8", traits=only("Resnet-50"))
    assert spans(alone) == {"a1": [(0, 1000)]}
    neighbour = row("a2", gpus=1, cpus=1, submit_s=500, duration_s=10_000)
    beside = simulated([replace(gang, gpus=4), neighbour], "2x3x8", traits=only("Resnet-50"))
    busy_speed = 75.6 / 98.0  # Philly, Table 3: images/s with and without neighbours
    assert spans(beside)["a1"] == [pytest.approx((0, 500 + 500 / busy_speed), rel=1e-3)]


def test_jobs_submitted_together_start_in_one_round() -> None:
    worlds: list[World] = []

    def watching(
        world: World,
        config: PolicyConfig,
        now_s: float,
        cache: PlannerCache | None,
        *,
        book: PromiseBook | None,
        explain: int | None,
    ) -> Decision:
        worlds.append(world)
        return decide(world, config, now_s, cache, book=book, explain=explain)

    simulated([row(f"a{number}", submit_s=5, duration_s=60) for number in range(4)], "1x4x8", decide=watching)
    assert [len(world.jobs) for world in worlds] == [4]


def test_every_start_is_one_that_the_planner_decided() -> None:
    started: list[tuple[str, float, tuple[str, ...]]] = []

    def watching(
        world: World,
        config: PolicyConfig,
        now_s: float,
        cache: PlannerCache | None,
        *,
        book: PromiseBook | None,
        explain: int | None,
    ) -> Decision:
        check(world)
        plan = decide(world, config, now_s, None, book=book, explain=explain)
        started.extend((start.job.split("/")[1], now_s, start.nodes) for start in plan.starts)
        return plan

    log = simulated(small_month(), SMALL_MONTH.cluster, decide=watching)
    found = [
        (entry.gang.row.job_id, piece.start_s, tuple(log.node_names[number] for number, _ in piece.nodes))
        for entry in log.entries
        for piece in entry.pieces
    ]
    assert sorted(found) == sorted(started)
    assert len(found) == 1000


def test_nothing_starts_that_the_planner_does_not_start() -> None:
    def refusing(
        world: World,
        config: PolicyConfig,
        now_s: float,
        cache: PlannerCache | None,
        *,
        book: PromiseBook | None,
        explain: int | None,
    ) -> Decision:
        return replace(decide(world, config, now_s, cache, book=book, explain=explain), starts=())

    log = simulated([row("a1"), row("a2")], "1x4x8", decide=refusing)
    assert spans(log) == {"a1": [], "a2": []}


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = list(small_month())
    log = simulated(rows, SMALL_MONTH.cluster)
    random.Random(3).shuffle(rows)
    again = simulated(rows, SMALL_MONTH.cluster)
    assert again.entries == log.entries
    assert again.trail.busy_gpus == log.trail.busy_gpus


def test_no_round_is_held_while_nobody_waits() -> None:
    rows = [row(f"a{number}", submit_s=100.0 * number, duration_s=10) for number in range(50)]
    assert simulated(rows, "1x4x8").cycles == 50


def test_progress_is_told_in_order() -> None:
    told: list[tuple[float, int]] = []
    simulated(small_month(), SMALL_MONTH.cluster, tell=lambda at_s, ended: told.append((at_s, ended)))
    assert told == sorted(told)
    assert 0 < told[-1][1] <= 1000
