"""How the time and the memory of a simulated month grow with its jobs and with the nodes of its cluster.

The load per node is the fitted month's everywhere: longer at 80 nodes, or as many jobs in fewer days on more of them.
What is timed is the simulation alone, from the first submission to the last end, through the planner's own `decide`,
as CPU seconds of a process of its own. Ideal is n log n in the jobs, from the month itself on.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

from coda.errors import InvalidInput
from coda.policy.policies import POLICIES as POLICY_TABLE
from coda_sim.engine import Costs, Simulation
from coda_sim.runs import config_of, simulation_config_of, without_collecting
from coda_sim.workload import Cores, JobModelConfig, JobModelDraws, MonthConfig, gangs_from_rows, profile_set
from coda_sim.workload.month import coda_month
from coda_sim.workload.month_config import lengthened, widened
from rig.asking import ask, tell
from rig.results import Answer, Row

POLICIES = ("coda", "drf", "fifo-skip")
NODES = 80  # of the month
POINTS = ((3, 1), (9, 1), (30, 1), (10, 3), (3, 10), (1, 25))
"""Days, and how many times as many nodes. Whole days, so the last has a sixth fewer jobs than the month."""
MILLION = ((300, 1), (12, 25))
QUICK = ((1, 1), (1, 3))
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run to measure."""

    policy: str
    days: int
    width: float

    @property
    def nodes(self) -> int:
        return round(NODES * self.width)

    @property
    def config(self) -> MonthConfig:
        month = MonthConfig()
        return widened(lengthened(month, self.days / month.days), self.width)

    @property
    def jobs(self) -> int:
        return self.config.gpu_jobs + self.config.cpu_jobs

    @property
    def ideal(self) -> float:
        return self.jobs * math.log2(self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What it cost."""

    policy: str
    jobs: int
    nodes: int
    days: int
    rounds: int
    waiting_share: float  # of the time in which a GPU job waited
    cpu_s: float
    peak_rss_mib: float
    ideal: float


def measured(point: Point) -> Measured:
    """Run it, in this process."""
    config = point.config
    shape, profiles = config.shape, profile_set("paper")
    gangs, _ = gangs_from_rows(coda_month(config, seed=SEED), shape, Cores(seed=SEED))
    setting = simulation_config_of(config_of(point.policy), shape, profiles, Costs())
    simulation = Simulation(setting, gangs, JobModelDraws(profiles, JobModelConfig(), seed=SEED))
    with without_collecting():  # as every run does
        began_s = time.process_time()
        log = simulation.run()
        cpu_s = time.process_time() - began_s
    waiting = log.trail.waiting_gpu_jobs
    return Measured(
        policy=point.policy,
        jobs=len(gangs),
        nodes=point.nodes,
        days=point.days,
        rounds=log.cycles,
        waiting_share=sum(map(bool, waiting)) / len(waiting),
        cpu_s=cpu_s,
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        ideal=point.ideal,
    )


def each(points: Iterable[Point]) -> list[Measured]:
    """One after the other, each in a process of its own: memory is measured by process."""
    found: list[Measured] = []
    for point in points:
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=spawning) as pool:
            found.append(pool.submit(measured, point).result())
        last = found[-1]
        tell(f"{last.policy}: {last.jobs} jobs on {last.nodes} nodes: {last.cpu_s:.1f} s, {last.peak_rss_mib:.0f} MiB")
    return found


async def answer(options: argparse.Namespace) -> Answer:
    """Every point under every policy."""
    places = QUICK if options.quick else (*POINTS, *(MILLION if options.million else ()))
    policies = options.policy or (POLICIES[:1] if options.quick else POLICIES)
    unknown = sorted({*policies} - POLICY_TABLE.keys())
    if unknown:
        raise InvalidInput(f"there is no policy {unknown[0]!r}: choose of {', '.join(POLICY_TABLE)}")
    rows: list[Row] = []
    detail: dict[str, object] = {}
    for policy in policies:
        found = each(Point(policy=policy, days=days, width=width) for days, width in places)
        rows += rows_of(found)
        detail[policy] = [asdict(one) for one in found]
    return Answer(question="simulation_scale", rows=tuple(rows), detail=detail)


def rows_of(found: list[Measured]) -> list[Row]:
    """The costs of one policy's runs; growth is measured from the month, or from the first where that is not run."""
    base = next((one for one in found if (one.days, one.nodes) == (MonthConfig().days, NODES)), found[0])
    rows: list[Row] = []
    for one in found:
        title = f"{one.policy}: {one.jobs} jobs, {one.nodes} nodes"
        is_month = one is base and one.days == MonthConfig().days
        time_bounds = {"budget": "<= 30", "aim": "<= 10"} if is_month and one.policy == "coda" else {}
        rows.append(Row(name=f"{title}: CPU time", value=one.cpu_s, unit="s", **time_bounds))
        rows.append(
            Row(name=f"{title}: peak memory", value=one.peak_rss_mib, unit="MiB", budget="<= 500" if is_month else "")
        )
        growth = one.cpu_s / base.cpu_s / (one.ideal / base.ideal)
        rows.append(Row(name=f"{title}: time against ideal n log n", value=growth, unit="times", budget="<= 1.3"))
    return rows


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--million", action="store_true", help="also a million jobs, on 80 and on 2000 nodes")
    parser.add_argument("--policy", action="append", help=f"(repeatable; default {', '.join(POLICIES)})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
