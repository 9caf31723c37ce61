"""One run, from its order to its result: load, simulate, measure, write.

An order has only names and numbers, so it can be sent to another process. The real clock is read only for `timing`.
"""

from __future__ import annotations

import copyreg
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from coda.compiled import is_compiled
from coda.contention.config import ContentionConfig
from coda.errors import InvalidInput
from coda.model.world import VirtualCluster
from coda.policy.config import ArraysConfig, Component, FairShareConfig, PolicyConfig, ReclaimConfig
from coda.policy.cores import CoresRule
from coda.policy.node_score import least_fragmenting, mix_of
from coda.policy.policies import POLICIES, Policy, policy_of
from coda_sim.engine.log import RunLog
from coda_sim.engine.simulation import Simulation
from coda_sim.engine.simulation_config import COSTS_BY_SETTING, Costs, CostSetting, SimulationConfig
from coda_sim.results.job_records import write_records
from coda_sim.results.metrics import MeasuredSpan, RunMetrics, metrics_of, window_of
from coda_sim.results.series import Series, series_of
from coda_sim.results.speed_gain import speed_gain_of
from coda_sim.results.summary import RunResult, Timing
from coda_sim.workload.cluster_shape import ClusterShape, shape_from_argument
from coda_sim.workload.inaccuracy import EXACT, Inaccuracy
from coda_sim.workload.job_models import JobModelConfig, JobModelDraws
from coda_sim.workload.model_profiles import ProfileSet, profile_set
from coda_sim.workload.tenant_tree import tenants_of
from coda_sim.workload.workload import Load, WorkloadSource, default_warmup_s, load

PARTS: Final = tuple(part.value for part in Component)
"""The components that `--without` can leave out of a policy that has them."""


def _parts(policy: Policy) -> tuple[Component, ...]:
    allocator = (Component.ALLOCATOR,) if policy.cores is CoresRule.TUNED else ()
    arrays = (Component.ARRAYS, Component.BORROWING, Component.MIGRATION) if policy.has_arrays else ()
    eliminator = (Component.ELIMINATOR,) if policy.throttles else ()
    short_first = (Component.SHORT_FIRST,) if policy.favours_short else ()
    time_slices = (Component.TIME_SLICES,) if policy.has_time_slices else ()
    fair_share = (Component.FAIR_SHARE,) if policy.shares_tenants_first else ()
    return (*allocator, *arrays, *eliminator, *time_slices, *fair_share, *short_first)


PARTS_BY_POLICY: Final[Mapping[str, tuple[Component, ...]]] = {
    name: _parts(policy) for name, policy in POLICIES.items()
}
"""The components of each policy."""


def _by_fields(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How a frozen class of the compiled core is pickled: pickle's own way sets its fields (docs/decisions/0028)."""
    return _built, (type(value), {each.name: getattr(value, each.name) for each in fields(value) if each.init})


def _built(cls: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    return cls(**values)


for _sent in (
    ArraysConfig,
    Costs,
    FairShareConfig,
    PolicyConfig,
    ReclaimConfig,
    Series,
    VirtualCluster,
):  # orders and outcomes go to other processes
    copyreg.pickle(_sent, _by_fields)


OnProgress = Callable[[int, int], None]
"""Called with the number of jobs that ended, and the number of all jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """The order for one run. `records`: the path of its `jobs.csv.gz`; None: not written. `warmup_s` None: default.

    `models`: what its jobs train. `inaccuracy`: of what planner and allocator are told; its seed is the order's.
    `planner`: its numbers; the order's policy, parts left out and racks are set in it. `tenants`: a file of virtual
    clusters, or SHARES, see `tenant_tree`; empty: none. `books_delays`: as in `SimulationConfig`."""

    source: WorkloadSource
    cluster: str
    racks: int = 1
    profiles: str
    policy: str
    without: tuple[str, ...] = ()
    seed: int
    costs: Costs = COSTS_BY_SETTING[CostSetting.PAID]
    warmup_s: float | None = None
    drain_s: float = 0.0
    records: Path | None = None
    models: JobModelConfig = field(default_factory=JobModelConfig)
    inaccuracy: Inaccuracy = EXACT
    planner: PolicyConfig = field(default_factory=PolicyConfig)
    divides_from_history: bool = False
    tenants: str = ""
    books_delays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run, without its log."""

    result: RunResult
    series: Series


def check(order: RunOrder) -> None:
    """Return if the order can be run, without reading its workload; else raise InvalidInput."""
    if order.policy not in POLICIES:
        raise InvalidInput(f"there is no policy {order.policy!r}: choose of {', '.join(POLICIES)}, or all")
    for part in order.without:
        if part not in PARTS:
            raise InvalidInput(f"--without {part}: a policy's parts are {', '.join(PARTS)}")
        if Component(part) not in PARTS_BY_POLICY[order.policy]:
            raise InvalidInput(f"--without {part}: {order.policy} has no {part} that could be left out")
    profile_set(order.profiles)
    shape_of(order)


def shape_of(order: RunOrder) -> ClusterShape:
    """Return the cluster of an order. Raises InvalidInput."""
    shape = shape_from_argument(order.cluster)
    nodes = sum(group.nodes for group in shape.groups)
    if not 1 <= order.racks <= nodes:
        raise InvalidInput(f"--racks {order.racks}: give 1 to {nodes}, so that no rack is empty")
    return replace(shape, racks=order.racks)


def config_of(
    policy: str, without: Iterable[str] = (), *, racks: int = 1, planner: PolicyConfig | None = None
) -> PolicyConfig:
    """Return the planner's configuration for a policy without the components named; no levels if there is one rack.

    `planner`: all other numbers; None: the defaults."""
    planner = planner or PolicyConfig()
    levels = planner.levels if racks > 1 else ()
    if planner.locality and not levels:
        raise InvalidInput("--prefer needs --racks above 1: with one rack there is nothing to prefer")
    return replace(planner, policy=policy, without=frozenset(map(Component, without)), levels=levels)


def simulation_config_of(
    config: PolicyConfig, shape: ClusterShape, profiles: ProfileSet, costs: Costs, inaccuracy: Inaccuracy = EXACT
) -> SimulationConfig:
    """Return the configuration in which a policy has all its components but those that `config` leaves out."""
    parts = set(PARTS_BY_POLICY[config.policy]) - config.without
    return SimulationConfig(
        shape=shape,
        profiles=profiles,
        planner=config,
        costs=costs,
        allocator=Component.ALLOCATOR in parts,
        contention=ContentionConfig() if Component.ELIMINATOR in parts else None,
        inaccuracy=inaccuracy,
    )


def run_order(order: RunOrder, on_progress: OnProgress | None = None) -> RunOutcome:
    """Run the order. The same order gives the same result, except for the timing. Raises InvalidInput."""
    return run_with_log(order, on_progress)[0]


def run_with_log(order: RunOrder, on_progress: OnProgress | None = None) -> tuple[RunOutcome, RunLog, MeasuredSpan]:
    """As `run_order`; return its log and the measured time too, for measures that no summary has."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    shape = shape_of(order)
    found = load(order.source, shape, seed=order.seed)
    profiles = profile_set(order.profiles)
    config = config_of(order.policy, order.without, racks=order.racks, planner=order.planner)
    if policy_of(order.policy).score is least_fragmenting:
        ranks = ((g.gpus_per_replica, g.cpus_per_replica) for g in found.gangs for _ in range(g.replicas))
        config = replace(config, mix=mix_of(ranks))
    inaccuracy = replace(order.inaccuracy, seed=order.seed)
    simulation_config = simulation_config_of(config, shape, profiles, order.costs, inaccuracy)
    tenants, gangs = tenants_of(order.tenants, found.gangs, shape.gpus)
    simulation_config = replace(
        simulation_config,
        divides_from_history=order.divides_from_history,
        virtual_clusters=tenants,
        books_delays=order.books_delays,
    )
    with without_collecting():
        models = JobModelDraws(profiles, order.models, seed=order.seed)
        jobs = len(found.gangs)
        log = Simulation(simulation_config, gangs, models).run(
            None if on_progress is None else lambda _now_s, ended: on_progress(ended, jobs)
        )
    warmup_s = default_warmup_s(found) if order.warmup_s is None else order.warmup_s
    window = window_of(found.submits_s, warmup_s=warmup_s, drain_s=order.drain_s)
    metrics = _with_workload(metrics_of(log, window), found)
    series = series_of(log, window)
    if order.records is not None:
        write_records(log, order.records)
    timing = Timing(
        wall_s=time.perf_counter() - wall_s,
        cpu_s=time.process_time() - cpu_s,
        peak_rss_bytes=_peak_rss_bytes(),
        compiled=is_compiled(),
    )
    result = RunResult(
        policy=order.policy,
        without=order.without,
        seed=order.seed,
        metrics=metrics,
        timing=timing,
        gain=speed_gain_of(log.entries),
    )
    return RunOutcome(result=result, series=series), log, window


def _with_workload(metrics: RunMetrics, found: Load) -> RunMetrics:
    return {
        **metrics,
        "jobs_refused": (metrics["jobs_refused"] or 0) + len(found.refused),
        "rows_skipped": found.rows_skipped,
        "rows_changed": found.rows_changed,
    }


@contextmanager
def without_collecting() -> Iterator[None]:
    """Stop Python's search for reference cycles: a run makes almost none, and each search reads the whole log."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
