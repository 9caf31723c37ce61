"""The generated month against every share and quantile it is stated with, within the sampling error of its seeds."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import pytest

from coda.errors import InvalidInput
from coda_sim.traces import JobKind, Row
from coda_sim.workload import Cores, MonthConfig, RefusedRow
from coda_sim.workload.gangs import gang_from_row
from coda_sim.workload.month import coda_month
from coda_sim.workload.month_config import STANDING_USER, Arrivals, CoresReading, lengthened, widened
from coda_sim.workload.provenance import Provenance
from tests.sim.workload.month_numbers import origins_of

pytestmark = pytest.mark.heavy

HOUR_S = 3600.0
SEEDS = range(1, 6)
A_FIFTH = widened(MonthConfig(), 0.2)

BATCHES = 4.0
"""Jobs of a batch share their moment and user, so those shares scatter more: at most by this factor of variance, the
mean square over the mean of the batch sizes (3.3 for CPU jobs)."""


@pytest.fixture(scope="module")
def jobs() -> tuple[Row, ...]:
    """As many jobs as a month has, from five seeds."""
    return tuple(one for seed in SEEDS for one in coda_month(A_FIFTH, seed=seed))


@pytest.fixture(scope="module")
def gpu_jobs(jobs: tuple[Row, ...]) -> list[Row]:
    return [one for one in jobs if one.kind is JobKind.GPU]


@pytest.fixture(scope="module")
def cpu_jobs(jobs: tuple[Row, ...]) -> list[Row]:
    return [one for one in jobs if one.kind is JobKind.CPU]


def check_share(rows: Sequence[Row], holds: Callable[[Row], bool], share: float, *, spread: float = 1.0) -> None:
    """Within 4.5 standard errors, once in 100 000 by chance; the seeds are fixed, so it never flickers."""
    found = sum(map(holds, rows)) / len(rows)
    assert found == pytest.approx(share, abs=4.5 * math.sqrt(spread * share * (1 - share) / len(rows)))


def test_a_month_has_exactly_its_jobs_in_order_with_ids_of_their_own() -> None:
    month = coda_month(seed=7)
    assert len(month) == 100_000
    assert sum(one.kind is JobKind.GPU for one in month) == 25_000
    assert [one.submit_s for one in month] == sorted(one.submit_s for one in month)
    assert len({one.job_id for one in month}) == 100_000
    assert month[0].submit_s >= 0
    assert month[-1].submit_s < 30 * 24 * HOUR_S
    assert all(one.duration_s >= 1 and one.duration_s == int(one.duration_s) for one in month)


def test_the_same_seed_gives_the_same_jobs_on_every_machine() -> None:
    """The digest was taken once; a difference means that no earlier result can be repeated."""
    month = coda_month(widened(MonthConfig(), 0.05), seed=1)
    told = [(one.job_id, one.user, one.submit_s, one.duration_s, one.gpus, one.cpus) for one in month]
    assert (
        hashlib.sha256(repr(told).encode()).hexdigest()
        == "089bf69ae72d74f2a0d02b882dd86603691a439863c27a6ec92bedbbf5aaead9"
    )


def test_another_seed_gives_other_jobs() -> None:
    small = widened(MonthConfig(), 0.01)
    assert coda_month(small, seed=1) == coda_month(small, seed=1)
    assert coda_month(small, seed=1) != coda_month(small, seed=2)


def test_every_number_says_where_it_comes_from() -> None:
    for config in (MonthConfig, Arrivals):
        origins = origins_of(config)
        assert origins.keys() == {one.name for one in fields(config)}
        assert all(origin.source for origin in origins.values())
    origins = origins_of(MonthConfig)
    for text in ("gpu_jobs", "cpu_jobs", "few_cores_share", "many_cores_share"):
        assert origins[text].tag is Provenance.TEXT
    assert origins["tail_alpha"].tag is Provenance.ASSUMED


@pytest.mark.parametrize(("low", "high", "share"), [(1, 2, 0.761), (3, 10, 0.086), (11, 28, 0.153)])
def test_cores_asked_by_jobs_of_one_gpu(gpu_jobs: list[Row], low: int, high: int, share: float) -> None:
    """With one GPU both readings are one."""
    ones = [one for one in gpu_jobs if one.gpus == 1]
    check_share(ones, lambda one: low <= (one.cpus or 0) <= high, share)


def test_few_cores_are_mostly_two_for_each_gpu(gpu_jobs: list[Row]) -> None:
    fours = [one for one in gpu_jobs if one.gpus == 4]
    check_share(fours, lambda one: one.cpus == 4, 0.761 * 0.15 + 0.086 / 8)
    check_share(fours, lambda one: one.cpus == 8, 0.761 * 0.85 + 0.086 / 8)
    assert max(one.cpus or 0 for one in gpu_jobs) <= 28


def test_few_cores_per_job_are_the_other_reading() -> None:
    per_job = [
        one
        for seed in SEEDS
        for one in coda_month(replace(A_FIFTH, cores_reading=CoresReading.PER_JOB, cpu_jobs=0), seed=seed)
    ]
    check_share(per_job, lambda one: (one.cpus or 0) <= 2, 0.761)
    check_share(per_job, lambda one: one.cpus == 1, 0.761 * 0.15)
    check_share(per_job, lambda one: (one.cpus or 0) > 10, 0.153)
    check_share(per_job, lambda one: one.cpus == 12, 0.153 * 0.5)


@pytest.mark.parametrize(("gpus", "share"), [(1, 0.56), (2, 0.16), (4, 0.21), (8, 0.07)])
def test_gpus_per_job(gpu_jobs: list[Row], gpus: int, share: float) -> None:
    check_share(gpu_jobs, lambda one: one.gpus == gpus, share)


def test_run_times_of_gpu_jobs(gpu_jobs: list[Row]) -> None:
    check_share(gpu_jobs, lambda one: one.duration_s > HOUR_S, 0.685)
    check_share(gpu_jobs, lambda one: one.duration_s > 2 * HOUR_S, 0.396)
    check_share(gpu_jobs, lambda one: one.duration_s <= math.sqrt(120 * 3600), 0.315 / 2)
    check_share(gpu_jobs, lambda one: HOUR_S < one.duration_s <= math.sqrt(2) * HOUR_S, 0.289 / 2)
    cut = 36**-0.72
    check_share(gpu_jobs, lambda one: one.duration_s > 8 * HOUR_S, 0.396 * (4**-0.72 - cut) / (1 - cut))
    assert min(one.duration_s for one in gpu_jobs) >= 120
    assert max(one.duration_s for one in gpu_jobs) <= 72 * HOUR_S
    mean_h = math.fsum(one.duration_s for one in gpu_jobs) / len(gpu_jobs) / HOUR_S
    assert mean_h == pytest.approx(4.31, abs=0.25)  # standard deviation 8.8 h


@pytest.mark.parametrize(("cores", "share"), [(1, 0.4), (2, 0.3), (4, 0.2), (8, 0.1)])
def test_cores_of_cpu_jobs(cpu_jobs: list[Row], cores: int, share: float) -> None:
    check_share(cpu_jobs, lambda one: one.cpus == cores, share)


def test_run_times_of_cpu_jobs(cpu_jobs: list[Row]) -> None:
    def below(seconds: float) -> float:
        return 0.5 * (1 + math.erf(math.log(seconds / 3600) / 1.5 / math.sqrt(2)))

    for seconds in (600, 3600, 6 * HOUR_S):
        check_share(cpu_jobs, lambda one, most=seconds: one.duration_s <= most + 0.5, below(seconds + 0.5))  # type: ignore[misc]
    check_share(cpu_jobs, lambda one: one.duration_s == 24 * HOUR_S, 1 - below(24 * HOUR_S))


@pytest.mark.parametrize(
    ("kind", "amplitude", "in_batches"), [(JobKind.GPU, 0.77, 0.08 / 1.06), (JobKind.CPU, 0.84, 0.22 / 1.2)]
)
def test_arrivals_follow_day_week_and_batches(
    jobs: tuple[Row, ...], kind: JobKind, amplitude: float, in_batches: float
) -> None:
    of_kind = [one for one in jobs if one.kind is kind]
    check_share(of_kind, lambda one: int(one.submit_s // 86_400) % 7 >= 5, 8 * 0.4 / (22 + 8 * 0.4), spread=BATCHES)
    around_15h = 0.5 + amplitude / math.pi
    check_share(of_kind, lambda one: 9 <= one.submit_s % 86_400 / HOUR_S < 21, around_15h, spread=BATCHES)
    at_once = Counter((one.submit_s, one.user) for one in of_kind)
    check_share(of_kind, lambda one: at_once[one.submit_s, one.user] > 1, in_batches, spread=4 * BATCHES)
    assert max(at_once.values()) == (6 if kind is JobKind.GPU else 20)


def test_the_load_is_that_of_the_calibrated_month(jobs: tuple[Row, ...]) -> None:
    seconds = len(SEEDS) * 30 * 24 * HOUR_S
    gpus, cores = A_FIFTH.shape.gpus, 16 * 28
    gpu_load = math.fsum(one.gpus * one.duration_s for one in jobs) / seconds / gpus
    gpu_cores = math.fsum((one.cpus or 0) * one.duration_s for one in jobs if one.gpus) / seconds / cores
    cpu_cores = math.fsum((one.cpus or 0) * one.duration_s for one in jobs if not one.gpus) / seconds / cores
    assert gpu_load == pytest.approx(0.842, abs=0.06)
    assert gpu_cores == pytest.approx(0.395, abs=0.03)
    assert cpu_cores == pytest.approx(0.322, abs=0.015)


def test_users_fifteen_to_twenty_submit_cpu_jobs_only(gpu_jobs: list[Row], cpu_jobs: list[Row]) -> None:
    assert {one.user for one in gpu_jobs} == {f"user-{number:02d}" for number in range(1, 15)}
    assert {one.user for one in cpu_jobs} == {f"user-{number:02d}" for number in range(1, 21)}
    check_share(cpu_jobs, lambda one: one.user >= "user-15", 0.7, spread=BATCHES)
    weights = [rank**-0.63 for rank in range(1, 15)]
    check_share(gpu_jobs, lambda one: one.user == "user-01", 1 / sum(weights), spread=BATCHES)


def test_the_lab_submits_most_gpu_jobs_and_the_companies_most_cpu_jobs(
    gpu_jobs: list[Row], cpu_jobs: list[Row]
) -> None:
    assert sum(one.virtual_cluster == "lab" for one in gpu_jobs) > len(gpu_jobs) / 2
    assert sum(one.virtual_cluster == "lab" for one in cpu_jobs) < len(cpu_jobs) / 2
    assert {one.virtual_cluster for one in cpu_jobs} == {"lab", *(f"company-{number}" for number in range(1, 5))}


def test_jobs_of_two_nodes_are_as_many_as_asked_for() -> None:
    tenth = replace(A_FIFTH, two_nodes_share=0.1, cpu_jobs=0)
    rows = [one for seed in SEEDS for one in coda_month(tenth, seed=seed)]
    check_share(rows, lambda one: one.nodes_requested == 2, 0.1)
    assert all(one.gpus > 1 for one in rows if one.nodes_requested == 2)


def test_every_job_fits_the_cluster_the_month_is_for(jobs: tuple[Row, ...]) -> None:
    shape = MonthConfig().shape
    assert str(shape) == "20x8x28,60x4x28"
    assert (shape.gpus, sum(group.nodes for group in shape.groups)) == (400, 80)
    requests = {(one.gpus, one.cpus): one for one in jobs}
    gangs = [gang_from_row(one, shape, Cores()) for one in requests.values()]
    assert not [gang for gang in gangs if isinstance(gang, RefusedRow) or gang.changes]


def test_a_wider_month_has_the_same_load_per_node_and_a_longer_one_per_day() -> None:
    wide = widened(MonthConfig(), 10)
    assert (wide.gpu_jobs, wide.cpu_jobs, wide.days) == (250_000, 750_000, 30)
    assert wide.cluster == "200x8x28,600x4x28"
    long = lengthened(MonthConfig(), 10)
    assert (long.gpu_jobs, long.cpu_jobs, long.days) == (250_000, 750_000, 300)
    assert long.cluster == MonthConfig().cluster


def test_other_cpu_jobs_leave_the_gpu_jobs_as_they_are() -> None:
    small = widened(MonthConfig(), 0.02)
    short = replace(small, cpu_median_s=600.0, cpu_jobs=100)
    asked = [
        [(one.submit_s, one.user, one.gpus, one.cpus, one.duration_s) for one in coda_month(config, seed=3) if one.gpus]
        for config in (small, short)
    ]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gpus": ((1, 0.5),)}, "the shares of gpus must sum to 1"),
        ({"few_cores_share": 0.9}, "must not sum to more than 1"),
        ({"days": 0}, "it needs a day and a user"),
        ({"cpu_jobs": -1}, "no count may be negative"),
        ({"cluster": "80"}, "'80' is no group of nodes"),
    ],
)
def test_a_month_that_cannot_be_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        _ = replace(MonthConfig(), **change).shape  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_a_factor_that_makes_no_month_is_refused(factor: float) -> None:
    with pytest.raises(InvalidInput, match="times as large: give a number above 0"):
        widened(MonthConfig(), factor)


@pytest.mark.parametrize("change", [{"amplitude": 1.5}, {"batch_share": -0.1}, {"batch_jobs": (6, 2)}])
def test_arrivals_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="arrivals: "):
        Arrivals(**change)  # type: ignore[arg-type]


def test_standing_jobs_come_first_run_all_month_and_change_no_other() -> None:
    config = MonthConfig(days=2, gpu_jobs=20, cpu_jobs=40)
    rows = coda_month(replace(config, standing_jobs=2), seed=1)
    assert [(one.job_id, one.submit_s, one.duration_s, one.cpus) for one in rows[:2]] == [
        ("standing-1", 0, 2 * 86_400, 12),
        ("standing-2", 0, 2 * 86_400, 12),
    ]
    assert {one.user for one in rows[:2]} == {STANDING_USER}
    assert rows[2:] == coda_month(config, seed=1)
