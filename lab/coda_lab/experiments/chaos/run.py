"""One run: a cluster behind gates, the load, the faults one salvo after the other, the drain, the account."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coda_kube.api.client import Client
from coda_lab.checker import Checker
from coda_lab.experiments.chaos.accidents import Accident, Mishap, accidents, timeline
from coda_lab.experiments.chaos.faults import BUDGET_S, Striker, Struck
from coda_lab.experiments.chaos.happenings import Grounds, Happened, Happenings
from coda_lab.experiments.chaos.jumping_clock import environ
from coda_lab.experiments.chaos.lending import Lending
from coda_lab.experiments.chaos.progress_signs import LEASES, Signs
from coda_lab.experiments.chaos.proxy import Gate
from coda_lab.experiments.chaos.report import Outcome
from coda_lab.experiments.chaos.restore import Restorer
from coda_lab.experiments.chaos.schedule import Fault, schedule
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.display import Standing
from coda_lab.experiments.load.driver import Demand, Driver
from coda_lab.experiments.load.plans import JobPlan, foreign_pods, jobs, of_all_classes, of_tenants, with_tuned_cores
from coda_lab.experiments.load.recorded import recorded
from coda_lab.experiments.load.shared_gpus import SharedGpus
from coda_lab.experiments.load.stops import Stops
from coda_lab.experiments.load.tenants import Tenants
from coda_lab.experiments.load.watches import ALL_JOBS, ALL_PODS, Watches, beside
from coda_lab.experiments.load.wishes import Wishes
from coda_lab.host.ports import LOOPBACK, free_ports
from coda_lab.host.temp_folder import temporary_folder
from coda_lab.host.versions import machine, versions
from coda_lab.kubelets.nodes import NodeSpec, node_specs
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.restarts import Restarter
from coda_lab.local.startup import running_cluster
from coda_lab.spec import EXTENDER, OPERATOR, SCHEDULER, ClusterSpec

REPLICAS: Final = 2  # of the operator and of the extender: one leads, one stands by
GATED: Final = (*(f"{kind}-{number}" for kind in (OPERATOR, EXTENDER) for number in range(REPLICAS)), SCHEDULER)
NODES_PER_RACK: Final = 25
REQUEST_TIMEOUT_S: Final = 10.0
AGENT_TIMEOUT_S: Final = 5.0
LOAD_PATIENCE_S: Final = 10.0
LATE_RANK_S: Final = 15.0
SEATS: Final = 4  # on each GPU
SHARED: Final = {"CODA_SHARING": "true", "CODA_SHARING_AUTO_WAIT_S": "5"}
LENT_LIMIT_S: Final = 120.0  # until every CPU job runs again
RECORDED_LIMIT_S: Final = 60.0  # until the history has every job that ended
TENANTS_SETTINGS: Final = {  # gangs of a few seconds stop for tenants, and guests for large gangs
    "CODA_SCHEDULING_POLICY": "coda",
    "CODA_FAIR_SHARE_MIN_RUNTIME_S": "2",
    "CODA_FAIR_SHARE_STOPS_PER_MINUTE": "0",
    "CODA_ARRAY_LARGE_SHARE": "0.5",
}
TUNING_WINDOW_S: Final = 1.0  # jobs of a few seconds are tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run. `logs`: where the parts' logs are copied at the end; None keeps none."""

    seed: int
    kills: int
    stops: int
    cuts: int
    nodes: str
    accidents: int = 0
    only: tuple[Accident, ...] = ()
    lending: bool = False  # CPU jobs borrow cores, and ArrayQuotas change
    sharing: bool = False  # jobs of all classes: some share GPUs
    tenants: bool = False  # a tree of tenants that borrow GPUs, and stops with notice
    tuning: bool = False  # jobs grow and shrink while they run
    agents: int = 0  # nodes with the real agent, on an emulated machine
    drain_s: float = 300.0
    budget_s: float = BUDGET_S  # of the planner's fail-over
    logs: Path | None = None

    @property
    def specs(self) -> tuple[NodeSpec, ...]:
        """The nodes. Raises InvalidInput."""
        return node_specs(self.nodes, racks=1)

    @property
    def simulated(self) -> tuple[NodeSpec, ...]:
        """The nodes that have no agent of their own."""
        return self.specs[self.agents :]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The schedule."""
        return schedule(self.seed, kills=self.kills, stops=self.stops, cuts=self.cuts)

    @property
    def mishaps(self) -> tuple[Mishap, ...]:
        """The accidents; `only` of these kinds, if any."""
        return accidents(self.seed, self.accidents, only=self.only)


@dataclass(slots=True, kw_only=True)
class Scene:
    """The progress of a run, for the display."""

    options: Options
    began_s: float
    account: Account
    checker: Checker
    struck: list[Struck]
    happened: list[Happened]

    def standing(self) -> Standing:
        """For the display."""
        total = len(self.options.faults) + self.options.accidents
        return Standing(
            done=len(self.struck) + len(self.happened), total=total, account=self.account, checker=self.checker
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Receives a step of the start, faults, accidents and the recoveries, and the scene once there is one."""

    step: Callable[[str], None]
    fault: Callable[[Fault, str], None]
    accident: Callable[[Mishap, str], None]
    scene: Callable[[Scene], None]


async def run(options: Options, audience: Audience) -> Outcome:
    """Run it all and return the account. Raises CodaError when the cluster cannot start."""
    load_before = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        started = await _started(stack, options, audience)
        cluster, admin = started.cluster, await stack.enter_async_context(started.cluster.client("admin"))
        user = await stack.enter_async_context(cluster.client("user", timeout_s=REQUEST_TIMEOUT_S))
        began_s = time.time()
        signs, account, checker, stops = Signs(), Account(), Checker(admin), Stops()
        shared = SharedGpus(options.simulated if options.sharing else (), seed=options.seed)
        wishes = Wishes(frozenset(node.name for node in options.simulated), seed=options.seed)
        of_jobs = (account.on_job, signs.on_job, stops.on_job, wishes.on_job)
        listeners = ((ALL_JOBS, of_jobs), (ALL_PODS, (account.on_pod, signs.on_pod, stops.on_pod, shared.on_pod)))
        watches = Watches(admin, (*listeners, (LEASES, (signs.on_lease,))))
        restarter = Restarter(cluster)
        driver = _driver(user, account, options)
        account.changed = driver.wake.set
        scene = Scene(options=options, began_s=began_s, account=account, checker=checker, struck=[], happened=[])
        grounds = Grounds(
            cluster=cluster,
            admin=admin,
            nodes=tuple(node.name for node in options.specs),
            account=account,
            signs=signs,
            clock_by_part=started.clock_by_part,
            restorer=Restorer(cluster, restarter, admin, account, checker, watches),
        )
        tenants = Tenants(admin, seed=options.seed, gpus=sum(node.gpus for node in options.specs))
        if options.tenants:
            await tenants.make()
        async with checker.watching(), watches.kept(), beside(restarter.keep_all()), beside(driver.run()):
            audience.scene(scene)
            lending = Lending(admin, seed=options.seed, nodes=len(options.specs), with_accidents=bool(options.mishaps))
            stop_edits = await stack.enter_async_context(AsyncExitStack())
            if options.sharing or options.tuning:
                clients = await _agent_clients(stack, cluster, options)
                await stop_edits.enter_async_context(beside(shared.run(clients)))
                await stop_edits.enter_async_context(beside(wishes.run(clients)))
            if options.lending:
                await stop_edits.enter_async_context(beside(lending.run()))
            if options.tenants:
                await stop_edits.enter_async_context(beside(tenants.edit()))
            striker = Striker(
                cluster,
                restarter,
                started.gates,
                signs,
                watches.renew,
                audience.fault,
                budget_s=options.budget_s,
            )
            happenings = Happenings(grounds, audience.accident)
            for event in timeline(options.faults, options.mishaps):
                with suppress(TimeoutError):  # a slow machine never gets there: then the load is what it can do
                    async with asyncio.timeout(LOAD_PATIENCE_S):
                        await driver.is_full.wait()
                if isinstance(event, Mishap):
                    scene.happened.append(await happenings.happen(event))
                else:
                    scene.struck += await striker.strike(event)
            driver.submitting = False
            audience.step("no more faults, no new jobs: waiting for everything to end")
            drained_s = await driver.drained(options.drain_s)
            await stop_edits.aclose()
            lent = await lending.ended(LENT_LIMIT_S) if options.lending else None
            history = await recorded(cluster.layout.history, account, limit_s=RECORDED_LIMIT_S)
        return Outcome(
            seed=options.seed,
            nodes=options.nodes,
            began_s=began_s,
            ended_s=time.time(),
            drained_s=drained_s,
            versions=await versions(admin),
            machine=machine(load_before),
            struck=tuple(scene.struck),
            happened=tuple(scene.happened),
            check=checker.report(),
            account=account,
            restarts_by_part=restarter.restarts_by_part,
            lent=lent,
            stops=stops,
            history=history,
            shared=shared.outcome() if options.sharing else None,
            wishes=wishes,
            tenant_edits=tenants.edits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A running cluster, the gates before its parts, and the files that their clocks follow."""

    cluster: LocalCluster
    gates: dict[str, Gate]
    clock_by_part: dict[str, Path]


async def _started(stack: AsyncExitStack, options: Options, audience: Audience) -> _Started:
    api_port, *gate_ports = free_ports(1 + len(GATED), random.Random())
    gates = {
        part: await stack.enter_async_context(Gate.opened(port, api_port))
        for part, port in zip(GATED, gate_ports, strict=True)
    }
    clocks = stack.enter_context(temporary_folder())
    clock_by_part = {part: clocks / part for part in GATED if part != SCHEDULER}
    nodes = len(options.specs)
    spec = ClusterSpec(
        nodes=options.nodes,
        racks=max(1, nodes // NODES_PER_RACK),
        operators=REPLICAS,
        extenders=REPLICAS,
        api_port=api_port,
        server_by_part={part: f"https://{LOOPBACK}:{port}" for part, port in zip(GATED, gate_ports, strict=True)},
        seats=SEATS if options.sharing else 0,
        agents=options.agents,
        agent_window_s=TUNING_WINDOW_S,
        environ_by_part=_environs(options, clock_by_part),
    )
    cluster = await stack.enter_async_context(running_cluster(spec, tell=audience.step))
    if options.logs is not None:
        stack.callback(shutil.copytree, cluster.log_path("etcd").parent, options.logs, dirs_exist_ok=True)
    return _Started(cluster=cluster, gates=gates, clock_by_part=clock_by_part)


async def _agent_clients(stack: AsyncExitStack, cluster: LocalCluster, options: Options) -> dict[str, Client]:
    return {
        node.name: await stack.enter_async_context(cluster.agent_client(node.name, timeout_s=AGENT_TIMEOUT_S))
        for node in options.simulated
    }


def _environs(options: Options, clock_by_part: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    if options.accidents:
        found |= {part: dict(environ(path)) for part, path in clock_by_part.items()}
    more = (SHARED if options.sharing else {}) | (TENANTS_SETTINGS if options.tenants else {})
    if more:
        found |= {part: found.get(part, {}) | more for part in GATED if part.startswith(EXTENDER)}
    return found


def _driver(user: Client, account: Account, options: Options) -> Driver:
    specs = options.specs
    gangs = jobs(options.seed, nodes=len(specs), gpus_per_node=specs[0].gpus)
    if options.sharing:
        gangs = of_all_classes(gangs, options.seed)
    if options.tenants:
        gangs = of_tenants(gangs, options.seed)
    if options.tuning or options.agents:
        gangs = with_tuned_cores(gangs, options.seed)
    if options.accidents:
        gangs = _with_late_ranks(gangs)
    return Driver(user, account, Demand.overloading(specs), gangs, foreign_pods(options.seed))


def _with_late_ranks(gangs: Iterator[JobPlan]) -> Iterator[JobPlan]:
    """In every third gang rank 0 runs on when the others have succeeded: their pods may vanish then."""
    for number, plan in enumerate(gangs):
        is_late = number % 3 == 0 and plan.replicas > 1 and plan.failing_rank is None
        yield replace(plan, last_rank_s=LATE_RANK_S) if is_late else plan
