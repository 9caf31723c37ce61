"""Jobs that give their place up for others: what becomes of their work, and when they go on."""

from dataclasses import replace
from itertools import pairwise

import pytest

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import Decision, Job, World
from coda.model.decision import StopCause
from coda.policy import PolicyConfig
from coda.policy.config import ReclaimConfig
from coda.promises import PromiseBook
from coda_sim.engine import COSTS_BY_SETTING, Costs, CostSetting
from coda_sim.engine.job_run import JobRun
from coda_sim.results.metrics import first_wait_s, metrics_of, wait_s, window_of
from coda_sim.runs import config_of
from coda_sim.traces import Row
from coda_sim.workload import Cores, Gang, shape_from_text
from coda_sim.workload.gangs import gang_from_row
from coda_sim.workload.job_models import JobModel
from tests.sim.simulating import only, simulated, simulated_under, spans
from tests.sim.worlds import row

# 16 of the node's 28 cores belong to its GPUs; the CPU job borrows 12 of them.
BORROWER = row("c1", gpus=0, cpus=24, submit_s=0, duration_s=1000)
TRAINING = row("g1", gpus=4, cpus=8, submit_s=400, duration_s=300)
TRANSFORMER = only("Transformer")  # wants 8 cores with 4 GPUs, and starts with 12 when nothing is known


def stopped(cause: StopCause) -> Job:
    gang = gang_from_row(row("a1", duration_s=100), shape_from_text("1x4x8"), Cores())
    assert isinstance(gang, Gang)
    run = JobRun(gang, JobModel(profile=None))
    run.submit(gang.cpus_per_replica, is_resumable=True, is_tunable=False)
    run.done_s = 30.0
    run.requeue(cause, run.cores, 50.0, restart_s=40.0, reclaimed=0)
    return run.job


def test_a_borrower_is_aborted_when_a_gpu_job_wants_its_cores_and_goes_on_where_it_was() -> None:
    log = simulated_under("coda", [BORROWER, TRAINING], "1x4x28", traits=TRANSFORMER)
    borrower, training = log.entries
    assert (borrower.aborts, borrower.migrations, training.aborts) == (1, 0, 0)
    assert spans(log)["c1"][0] == (0, 400)
    assert spans(log)["g1"][0][0] == 400
    assert borrower.end_s is not None
    assert borrower.end_s == training.end_s + 600 if training.end_s else False
    assert all(piece.kept for piece in borrower.pieces)


@pytest.mark.parametrize(
    ("limits", "starts_s"),
    [
        (ReclaimConfig(), [400, 900]),
        (ReclaimConfig(min_runtime_s=150.0), [400, 1000]),  # it goes on at 700, and runs for twice as long
        (ReclaimConfig(min_runtime_s=450.0, min_runtime_limit_s=500.0), [450, 1250]),
        (ReclaimConfig(evictions_per_minute=1), [400, 900]),
    ],
    ids=["none", "twice as long the second time", "a limit", "a budget that is never used up"],
)
def test_a_borrower_runs_for_its_minimum_in_a_simulation_too(limits: ReclaimConfig, starts_s: list[float]) -> None:
    again = replace(TRAINING, job_id="g2", submit_s=900)
    borrower = replace(BORROWER, duration_s=5000)
    config = replace(config_of("coda"), reclaim=limits)
    log = simulated([borrower, TRAINING, again], "1x4x28", config=config, traits=TRANSFORMER)
    assert [spans(log)[name][0][0] for name in ("g1", "g2")] == starts_s


def test_an_aborted_job_begins_anew_where_nothing_was_saved() -> None:
    costs = Costs(resuming_cpu_jobs=0.0)
    log = simulated_under("coda", [BORROWER, TRAINING], "1x4x28", traits=TRANSFORMER, costs=costs)
    borrower, training = log.entries
    assert [piece.kept for piece in borrower.pieces] == [False, True]
    assert borrower.end_s == training.end_s + 1000 if training.end_s else False
    metrics = metrics_of(log, window_of([0.0, 2000.0], warmup_s=0, drain_s=0))
    assert metrics["lost_core_s"] == pytest.approx(400 * 24)
    assert metrics["aborts"] == 1


def test_the_settings_of_costs_differ_in_aborts_and_resizes() -> None:
    paid, resumed, free = (COSTS_BY_SETTING[setting] for setting in CostSetting)
    assert replace(paid, resuming_cpu_jobs=1.0) == resumed
    assert replace(resumed, resize_s=0.0, profiling_s=0.0) == free == Costs()
    assert min(paid.resize_s, paid.profiling_s, paid.restart_s) > 0


def test_a_restart_of_a_migrated_job_is_lost_work_of_all_that_it_holds() -> None:
    home = [row(f"h{number}", gpus=1, cpus=2, duration_s=500) for number in range(4)]
    guest = row("s1", gpus=1, cpus=2, submit_s=10, duration_s=2000)
    large = row("w1", gpus=8, cpus=16, submit_s=1000, duration_s=100)
    log = simulated_under("coda", [*home, guest, large], "1x8x28,1x4x28", traits=TRANSFORMER)
    (restart,) = (restart for entry in log.entries for restart in entry.restarts)
    assert (restart.start_s, restart.end_s) == (1000, 1040)
    metrics = metrics_of(log, window_of([0.0, 5000.0], warmup_s=0, drain_s=0))
    assert (metrics["migrations"], metrics["lost_gpu_s"]) == (1, 40.0)
    assert metrics["lost_core_s"] == 40.0 * restart.cores
    early = metrics_of(log, window_of([0.0, 5000.0], warmup_s=0, drain_s=3990))  # measured until 1010 s
    assert early["lost_gpu_s"] == 10.0


def test_more_cores_work_only_once_the_resize_is_over_and_fewer_at_once() -> None:
    # BAT with 1 GPU is fastest with 6 cores and starts with 4: every window finds that more are better.
    free, paid = (
        simulated(
            [row("a1", gpus=1, cpus=2, duration_s=3000)], "1x1x28", allocator=True, traits=only("BAT"), costs=costs
        )
        for costs in (Costs(), Costs(resize_s=30.0))
    )
    (quick,), (slow,) = free.entries, paid.entries
    cores = [piece.cores for piece in quick.pieces]
    assert cores == [piece.cores for piece in slow.pieces]
    grown = sum(after > before for before, after in pairwise(cores))
    assert grown >= 1
    assert quick.end_s is not None
    assert slow.end_s is not None
    starts = [(after.start_s - before.start_s) for before, after in pairwise(slow.pieces)]
    assert starts[0] == 90.0
    assert {round(length) for length in starts[1:]} <= {90, 120}
    assert 0 < slow.end_s - quick.end_s < 30.0 * grown + 30.0 * len(starts)


def test_a_restart_of_a_cpu_job_costs_what_it_costs() -> None:
    log = simulated_under("coda", [BORROWER, TRAINING], "1x4x28", traits=TRANSFORMER, costs=Costs(cpu_restart_s=50.0))
    borrower, training = log.entries
    assert borrower.end_s == training.end_s + 650 if training.end_s else False


def test_without_borrowing_nobody_is_aborted() -> None:
    waiting = simulated_under("coda", [BORROWER, TRAINING], "1x4x28", without=["borrowing"], traits=TRANSFORMER)
    assert waiting.entries[0].pieces == []
    assert "HeldByPolicy" in waiting.entries[0].refusal
    assert waiting.entries[1].end_s is not None


def test_a_small_job_moves_when_a_large_one_wants_its_node_back() -> None:
    # The large sub-array is the first node (8 GPUs); the small one is full, so the guest goes to the large node.
    home = [row(f"h{number}", gpus=1, cpus=2, duration_s=500) for number in range(4)]
    guest = row("s1", gpus=1, cpus=2, submit_s=10, duration_s=2000)
    large = row("w1", gpus=8, cpus=16, submit_s=1000, duration_s=100)
    log = simulated_under("coda", [*home, guest, large], "1x8x28,1x4x28", traits=TRANSFORMER)
    moved = next(entry for entry in log.entries if entry.gang.row.job_id == "s1")
    assert moved.migrations == 1
    assert {log.node_names[piece.nodes[0][0]] for piece in moved.pieces} == {"node-0001", "node-0002"}
    assert all(piece.kept for piece in moved.pieces)
    restart = next(piece for piece in moved.pieces if piece.attempt == 2)
    assert restart.start_s == 1000
    assert moved.end_s is not None
    assert sum(piece.end_s - piece.start_s for piece in moved.pieces) > 2000 * 0.7 + 40  # 40 s without any work
    staying = simulated_under("coda", [*home, guest, large], "1x8x28,1x4x28", without=["migration"], traits=TRANSFORMER)
    assert [entry.migrations for entry in staying.entries] == [0] * 6


def test_a_preempted_job_keeps_its_work_and_pays_for_its_restart() -> None:
    long, short = row("p1", gpus=4, cpus=4, duration_s=1000), row("p2", gpus=4, cpus=4, submit_s=300, duration_s=100)
    log = simulated_under("srtf", [long, short], "1x4x8", traits=TRANSFORMER)
    assert spans(log) == {"p1": [(0, 300), (400, 1140)], "p2": [(300, 400)]}  # 700 s were left, and 40 s are lost
    assert [(entry.preemptions, entry.aborts, entry.migrations) for entry in log.entries] == [(1, 0, 0), (0, 0, 0)]
    assert all(piece.kept for entry in log.entries for piece in entry.pieces)


@pytest.mark.parametrize("policy", ["srtf", "tiresias-las", "coda"])
def test_a_gpu_job_without_checkpoints_is_never_stopped(policy: str) -> None:
    home = [row(f"h{number}", gpus=1, cpus=2, duration_s=500) for number in range(4)]
    guest = row("s1", gpus=1, cpus=2, submit_s=10, duration_s=20_000)
    large = row("w1", gpus=8, cpus=16, submit_s=9000, duration_s=100)
    for share, stops in ((1.0, 1), (0.0, 0)):
        costs = Costs(resuming_gpu_jobs=share)
        log = simulated_under(policy, [*home, guest, large], "1x8x28,1x4x28", traits=TRANSFORMER, costs=costs)
        assert sum(entry.preemptions + entry.migrations for entry in log.entries) == stops


def test_who_resumes_depends_on_the_job_and_a_larger_share_has_all_of_a_smaller_one() -> None:
    ids = [f"j{number}" for number in range(2000)]
    few, many = ({name for name in ids if Costs(resuming_gpu_jobs=share).resumes(name, 1)} for share in (0.25, 0.75))
    assert few < many
    assert len(few) == pytest.approx(500, abs=60)
    assert len(many) == pytest.approx(1500, abs=60)
    some = Costs(resuming_gpu_jobs=0.0, resuming_cpu_jobs=1.0)
    assert {(some.resumes(name, 1), some.resumes(name, 0)) for name in ids} == {(False, True)}


def test_a_job_that_waits_to_be_restarted_is_as_long_as_when_it_runs_again() -> None:
    # At 400 s the first has 700 s left and 40 s to restart, the last 720. If it were shorter only while it waits, it
    # would go first and be stopped for the last one: in August of Venus so for ever, at one moment.
    long, short = row("p1", gpus=4, cpus=4, duration_s=1000), row("p2", gpus=4, cpus=4, submit_s=300, duration_s=100)
    between = row("p3", gpus=4, cpus=4, submit_s=350, duration_s=720)
    log = simulated_under("srtf", [long, short, between], "1x4x8", traits=TRANSFORMER)
    assert spans(log) == {"p1": [(0, 300), (1120, 1860)], "p2": [(300, 400)], "p3": [(400, 1120)]}


def test_a_wait_is_all_the_time_in_the_queue_and_the_first_wait_stands_apart() -> None:
    # The long job starts at once and waits from 300 to 400 s, after it was stopped.
    long, short = row("p1", gpus=4, cpus=4, duration_s=1000), row("p2", gpus=4, cpus=4, submit_s=300, duration_s=100)
    log = simulated_under("srtf", [long, short], "1x4x8", traits=TRANSFORMER)
    assert [(first_wait_s(entry), wait_s(entry)) for entry in log.entries] == [(0, 100), (0, 0)]
    metrics = metrics_of(log, window_of([0.0, 300.0], warmup_s=0, drain_s=0))
    assert (metrics["gpu_wait_mean_s"], metrics["gpu_first_wait_mean_s"], metrics["gpu_started_10s"]) == (50, 0, 1)
    assert metrics["gpu_first_wait_p99_s"] == 0
    assert metrics["user_wait_p99_worst_s"] == pytest.approx(99)


def test_the_planner_is_asked_again_when_time_alone_lets_it_stop_a_job() -> None:
    # With 4 GPUs 3600 GPU-seconds are served after 900 s: from then on the first job may be stopped for a new one.
    first, second = row("p1", gpus=4, cpus=4, duration_s=2000), row("p2", gpus=4, cpus=4, submit_s=10, duration_s=100)
    log = simulated_under("tiresias-las", [first, second], "1x4x8", traits=TRANSFORMER)
    assert spans(log) == {"p1": [(0, 900), (1000, 2140)], "p2": [(900, 1000)]}


@pytest.mark.parametrize(
    ("cause", "returned"), [(StopCause.RECLAIM, True), (StopCause.MIGRATE, True), (StopCause.PREEMPT, False)]
)
def test_a_stopped_job_waits_as_its_stop_says(cause: StopCause, returned: bool) -> None:
    job = stopped(cause)
    assert (job.attempt, job.placement, job.returned, job.queued_s) == (2, None, returned, 0.0)
    assert (job.remaining_s, job.as_of_s) == (70.0 + 40.0, 50.0)


def test_the_planner_is_told_of_users_tenants_and_times() -> None:
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

    rows: list[Row] = [row("a1", gpus=3, duration_s=100), row("a2", gpus=2, submit_s=40, duration_s=50, user="u2")]
    simulated_under("yarn-cs", rows, "1x4x8", decide=watching)
    first, second = worlds[1].jobs
    assert (second.user, second.virtual_cluster, second.remaining_s, second.as_of_s) == ("u2", "venus", 50, 40)
    assert (first.remaining_s, first.as_of_s, first.served_s) == (100, 0, 0)
    assert [(one.name, one.gpus) for one in worlds[0].virtual_clusters] == [("venus", 4)]


LONG = row("long", gpus=4, cpus=4, submit_s=0, duration_s=9000)
SHORT = row("short", gpus=4, cpus=4, submit_s=6000, duration_s=60)


@pytest.mark.parametrize(
    ("save_every_s", "lost_s"),
    [
        pytest.param(0.0, 0.0, id="it is told, and saves"),
        pytest.param(1700.0, 900.0, id="since its last regular save"),
        pytest.param(7000.0, 6000.0, id="it has not saved yet"),
    ],
)
def test_a_job_loses_what_it_has_done_since_its_last_regular_save(save_every_s: float, lost_s: float) -> None:
    log = simulated_under("tiresias-las", [LONG, SHORT], costs=Costs(restart_s=0.0, save_every_s=save_every_s))
    entry = log.entries[0]
    assert entry.preemptions == 1
    assert sum(piece.work_s for piece in entry.pieces if not piece.kept) == pytest.approx(lost_s)
    assert sum(piece.work_s for piece in entry.pieces if piece.kept) == pytest.approx(9000.0)
    assert all(before.end_s <= after.start_s for before, after in pairwise(entry.pieces))
    assert entry.end_s == pytest.approx(9000.0 + 60.0 + lost_s)
    window = window_of([0.0, 6000.0], warmup_s=0, drain_s=0)
    assert metrics_of(log, window)["lost_gpu_s"] == pytest.approx(4 * lost_s)


def test_a_job_that_saves_every_half_hour_gets_done_however_many_take_their_turn() -> None:
    """Each short job stops it once it ran for ten minutes: then it needs a longer turn to save."""
    short = [replace(SHORT, job_id=f"short{number}", submit_s=2000 + 700 * number) for number in range(60)]
    log = simulated_under("coda", [LONG, *short], costs=Costs(restart_s=0.0, save_every_s=1800.0))
    long = log.entries[0]
    assert long.preemptions > 3
    assert long.end_s is not None
    assert long.end_s < 40_000
