"""CPU jobs of a trace, live and simulated: they borrow, give their cores back and begin again on both sides.

The jobs are few and short, so a late moment moves some of them; what must agree is what no moment changes.
"""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from agreement import ROUND_S
from coda_cli.progress import ReplayDisplay
from coda_cli.replay.metrics import ReplayRun, Workload, summary_from_run
from coda_cli.replay.run import ReplayLimits, replay
from coda_cli.replay.submissions import Manner, submissions_from_gangs
from coda_cli.replay.summary import json_from_summary
from coda_cli.target_cluster import opt_in, planner_of_replay
from coda_kube.api.client import Client
from coda_lab.spec import ClusterSpec
from coda_sim.traces import Row
from coda_sim.workload import Cores, Gang, gangs_from_rows, shape_from_text
from rig.agreeing import rounds, swapped_for_certain
from rig.replayed import Replayed, Simulator, replayed_from_json
from tests.sim.worlds import row

pytestmark = pytest.mark.e2e

NODES, RACKS, SEED, JOBS = "2x8x48", 1, 5, 36
PLANNER = dict.fromkeys(("extender-0", "extender-1"), planner_of_replay("coda", 1.0))
SPEC = ClusterSpec(nodes=NODES, racks=RACKS, environ_by_part=PLANNER)
GPU_JOBS = ((1, 4), (2, 8), (4, 20), (8, 32))  # GPUs and cores
LEAST_PAIRS = 60  # that no moment changes
MOST_SWAPPED = 0.05  # of these: none on a calm machine
TRIES = 3  # beside other work no job gave its cores back; the order has to be right each time


def drawn_rows(attempt: int) -> list[Row]:
    """Two CPU jobs for each training job, of two users, for more cores than there are."""
    rng = random.Random(SEED)
    rows = []
    for number in range(JOBS):
        gpus, cpus = rng.choice(GPU_JOBS) if number % 3 == 2 else (0, rng.choice((4, 8, 16)))
        run_s = rng.choice((2.0, 4.0, 6.0))
        name, user = f"try-{attempt}-job-{number:02}", f"user-{attempt}-{rng.randrange(2)}"
        rows.append(row(name, gpus=gpus, cpus=cpus, submit_s=0.35 * number, duration_s=run_s, user=user))
    return rows


def drawn_gangs(attempt: int) -> tuple[Gang, ...]:
    gangs, refused = gangs_from_rows(drawn_rows(attempt), shape_from_text(NODES), Cores())
    assert not refused
    return gangs


async def replayed(admin: Client, attempt: int) -> tuple[Replayed, float]:
    """What became of them on the cluster, and how often cores were given back."""
    manner = Manner(
        namespace="default", run="slice", speed=1.0, image="busybox", with_pods=True, by_user=True, opts_in=True
    )
    submissions = submissions_from_gangs(drawn_gangs(attempt), manner, source="drawn")
    await opt_in(admin, {one.namespace for one in submissions})
    with ReplayDisplay(Console(file=io.StringIO())) as display:
        seen = await replay(admin, submissions, manner, display, ReplayLimits(timeout_s=200))
    run = ReplayRun(
        workload=Workload(
            trace="drawn", rule="", cores="", rows=JOBS, left_out=0, durations_cut=0, was_sorted=True, seed=SEED
        ),
        cluster=NODES,
        racks=RACKS,
        policy="coda",
        speed=manner.speed,
        jobs=seen.jobs,
        began_s=seen.began_s,
        ended_s=seen.ended_s,
        stopped=seen.stopped,
    )
    summary = summary_from_run(run)
    assert summary.problems == ()
    return replayed_from_json(json_from_summary(summary, version="")), summary.metrics["aborts"] or 0


def was_disturbed(live: Replayed, given_back: float) -> list[str]:
    """What the machine's other work made of the run: a sentence each. The order has to be right whatever it did."""
    runs = [rounds(starts, 0.0) for starts in Simulator(live).starts_of_any(60)]
    certain, swapped = swapped_for_certain(rounds(live.starts, ROUND_S), runs)
    assert swapped <= MOST_SWAPPED * certain
    found = {
        "no job gave its cores back": given_back == 0,
        f"moments change the order of all but {certain} pairs": certain < LEAST_PAIRS,
    }
    return [sentence for sentence, is_so in found.items() if is_so]


async def test_cpu_jobs_borrow_give_back_and_start_live_in_the_order_of_the_simulator(admin: Client) -> None:
    found: list[list[str]] = []
    for attempt in range(TRIES):
        live, given_back = await replayed(admin, attempt)
        assert len(live.jobs) == JOBS
        found.append(was_disturbed(live, given_back))
        if not found[-1]:
            return
    assert found == []
