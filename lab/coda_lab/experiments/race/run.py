"""One race: a cluster with one scheduler or two, a finite load, and waiting until all of it has ended."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from coda_kube.api.client import Client
from coda_lab.checker import Checker
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.display import Standing
from coda_lab.experiments.load.driver import Demand, Driver
from coda_lab.experiments.load.plans import RUN_S, JobPlan, PodPlan, foreign_pods, jobs
from coda_lab.experiments.load.watches import JOBS, PODS, Watches, beside
from coda_lab.experiments.race.attempts import Attempts
from coda_lab.experiments.race.refusals import Refusals
from coda_lab.experiments.race.report import Outcome, Schedulers
from coda_lab.host.versions import machine, versions
from coda_lab.kubelets.nodes import NodeSpec, node_specs
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec

NODES_PER_RACK: Final = 25
REQUEST_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a race. `foreign_per_gang`: at most this many foreign pods. `longest_run_s`: all run times are
    scaled to it.

    `limit_s`: by then all must have ended. `logs`: where the parts' logs go; None keeps none.
    """

    seed: int
    gangs: int
    foreign_per_gang: int
    nodes: str
    schedulers: Schedulers
    longest_run_s: float
    limit_s: float
    logs: Path | None = None

    @property
    def specs(self) -> tuple[NodeSpec, ...]:
        """The nodes. Raises InvalidInput."""
        return node_specs(self.nodes, racks=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Receives a step of the start, and the progress of the race."""

    step: Callable[[str], None]
    standing: Callable[[Callable[[], Standing]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The books of a race."""

    account: Account
    attempts: Attempts
    refusals: Refusals
    checker: Checker


def gangs(options: Options) -> Iterator[JobPlan]:
    """The first jobs of the seed, without failures of their own and without user actions: only the race remains."""
    nodes = options.specs
    for plan in islice(jobs(options.seed, nodes=len(nodes), gpus_per_node=nodes[0].gpus), options.gangs):
        run_s = _scaled_s(plan.run_s, options)
        yield replace(plan, act=None, failing_rank=None, fails_always=False, retries=0, run_s=run_s)


def rivals(options: Options) -> Iterator[PodPlan]:
    """The endless foreign pods of the seed."""
    for plan in foreign_pods(options.seed):
        yield replace(plan, run_s=_scaled_s(plan.run_s, options))


def _scaled_s(run_s: float, options: Options) -> float:
    return round(run_s * options.longest_run_s / RUN_S[1], 2)


async def run(options: Options, audience: Audience) -> Outcome:
    """Run it all and return the account. Raises CodaError when the cluster cannot start."""
    load_before = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(_cluster_spec(options), tell=audience.step))
        if options.logs is not None:
            stack.callback(shutil.copytree, cluster.log_path("etcd").parent, options.logs, dirs_exist_ok=True)
        admin = await stack.enter_async_context(cluster.client("admin"))
        user = await stack.enter_async_context(cluster.client("user", timeout_s=REQUEST_TIMEOUT_S))
        began_s = time.time()
        account = Account()
        attempts = Attempts(lambda job: account.jobs[job].plan.replicas)
        books = Books(account=account, attempts=attempts, refusals=Refusals(), checker=Checker(admin))
        drained_s = await _race(options, audience, books, admin, user)
        return Outcome(
            seed=options.seed,
            nodes=options.nodes,
            schedulers=options.schedulers,
            began_s=began_s,
            ended_s=time.time(),
            drained_s=drained_s,
            versions=await versions(admin),
            machine=machine(load_before),
            check=books.checker.report(),
            account=account,
            attempts=attempts,
            refusals=books.refusals,
        )


def _cluster_spec(options: Options) -> ClusterSpec:
    return ClusterSpec(
        nodes=options.nodes,
        racks=max(1, len(options.specs) // NODES_PER_RACK),
        foreign_scheduler=options.schedulers is Schedulers.TWO,
    )


async def _race(options: Options, audience: Audience, books: Books, admin: Client, user: Client) -> float | None:
    account, checker = books.account, books.checker
    demand = Demand.overloading(options.specs, pods_per_job=options.foreign_per_gang)
    driver = Driver(user, account, demand, gangs(options), rivals(options))
    account.changed = driver.wake.set
    of_pods = (account.on_pod, books.attempts.on_pod, books.refusals.on_pod)
    watches = Watches(admin, ((JOBS, (account.on_job,)), (PODS, of_pods)))

    def standing() -> Standing:
        done = len(account.jobs) - account.open_jobs
        return Standing(done=done, total=options.gangs, account=account, checker=checker)

    async with checker.watching(), watches.kept(), beside(driver.run()):
        audience.standing(standing)
        return await driver.drained(options.limit_s)
