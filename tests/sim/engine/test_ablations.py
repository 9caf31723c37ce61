"""CODA as a whole and with parts left out: audited, decided by the planner alone, the same in any order."""

import random
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import Decision, World
from coda.model.consistency import check
from coda.policy import PolicyConfig
from coda.promises import PromiseBook
from coda_sim.engine import RunLog, nodes_of_shape
from coda_sim.results.audit import breaches, read_jobs
from coda_sim.results.job_records import write_records
from coda_sim.results.metrics import RunMetrics, metrics_of, window_of
from coda_sim.runs import PARTS_BY_POLICY
from coda_sim.traces import Row
from coda_sim.workload import MonthConfig, shape_from_text
from coda_sim.workload.month import coda_month
from tests.sim.simulating import simulated_under

pytestmark = pytest.mark.heavy

CLUSTER = "3x8x28,4x4x28"
PARTS = tuple(part.value for part in PARTS_BY_POLICY["coda"])

Resize = tuple[str, int, int]
"""A job, its attempt, and the cores per rank that it got."""


def busy_day() -> tuple[Row, ...]:
    return coda_month(MonthConfig(days=1, gpu_jobs=110, cpu_jobs=400), seed=2)


@cache
def coda_day(*without: str) -> RunLog:
    return simulated_under("coda", busy_day(), CLUSTER, without=without)


def metrics(log: RunLog) -> RunMetrics:
    return metrics_of(log, window_of([entry.gang.row.submit_s for entry in log.entries], warmup_s=0, drain_s=0))


@pytest.mark.parametrize("part", PARTS)
def test_no_ablation_over_commits_or_loses_work(part: str, tmp_path: Path) -> None:
    write_records(coda_day(part), tmp_path / "jobs.csv.gz")
    sizes = {
        node.name: (node.allocatable.gpus, node.allocatable.cpu_m // 1000, 0)
        for node in nodes_of_shape(shape_from_text(CLUSTER))
    }
    jobs = read_jobs(tmp_path / "jobs.csv.gz")
    assert breaches(jobs, sizes) == []
    assert all(job.finished for job in jobs)


def test_the_whole_policy_tunes_borrows_and_moves() -> None:
    found = metrics(coda_day())
    assert found["tuning_steps_mean"]
    assert found["aborts"]
    assert found["migrations"]


@pytest.mark.parametrize(
    ("part", "gone"),
    [
        ("allocator", ("tuning_steps_mean", "cores_gained_1_5", "cores_gained_more", "cores_lost")),
        ("arrays", ("aborts", "migrations")),
        ("borrowing", ("aborts",)),
        ("migration", ("migrations",)),
        ("eliminator", ("throttles",)),
        ("time-slices", ("preemptions",)),
    ],
)
def test_what_is_left_out_does_nothing(part: str, gone: tuple[str, ...]) -> None:
    found = metrics(coda_day(part))
    assert not any(found[name] for name in gone)


def test_only_coda_has_all_parts_and_a_rival_its_allocator() -> None:
    parts_by_name = {name: [part.value for part in parts] for name, parts in PARTS_BY_POLICY.items() if parts}
    assert parts_by_name.keys() == {"arrival", "coda", "fifo-skip-tuned"}
    assert parts_by_name["arrival"] == ["short-first"]
    assert parts_by_name["fifo-skip-tuned"] == ["allocator"]
    assert sorted(parts_by_name["coda"]) == sorted(PARTS)
    assert PARTS == (
        "allocator",
        "arrays",
        "borrowing",
        "migration",
        "eliminator",
        "time-slices",
        "fair-share",
        "short-first",
    )


def test_the_order_of_the_rows_changes_no_byte(tmp_path: Path) -> None:
    rows = list(busy_day())
    random.Random(4).shuffle(rows)
    write_records(coda_day(), tmp_path / "one.csv.gz")
    write_records(simulated_under("coda", rows, CLUSTER), tmp_path / "two.csv.gz")
    assert (tmp_path / "one.csv.gz").read_bytes() == (tmp_path / "two.csv.gz").read_bytes()


def resizes_of(log: RunLog) -> tuple[Counter[Resize], Counter[Resize]]:
    """The changes to more cores and those to fewer."""
    grown, shrunk = Counter[Resize](), Counter[Resize]()
    for entry in log.entries:
        for before, piece in pairwise(entry.pieces):
            if piece.attempt == before.attempt:
                (grown if piece.cores > before.cores else shrunk)[
                    entry.gang.row.job_id, piece.attempt, piece.cores
                ] += 1
    return grown, shrunk


def test_every_start_stop_and_growth_is_one_that_the_planner_decided() -> None:
    plans: list[Decision] = []

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
        plans.append(plan)
        return plan

    log = simulated_under("coda", busy_day(), CLUSTER, decide=watching)
    assert log.entries == coda_day().entries
    attempts = {(entry.gang.row.job_id, piece.attempt) for entry in log.entries for piece in entry.pieces}
    grown, shrunk = resizes_of(log)
    granted = Counter((grant.job.split("/")[1], grant.attempt, grant.cores) for plan in plans for grant in plan.grants)
    assert attempts == {(start.job.split("/")[1], start.attempt) for plan in plans for start in plan.starts}
    assert grown <= granted <= grown + shrunk  # fewer cores are granted without a cycle where only they are asked for
    stops = [stop for plan in plans for stop in plan.stops]
    assert len(stops) == sum(entry.aborts + entry.migrations + entry.preemptions for entry in log.entries)
    assert grown
    assert stops
