"""One run from its order to its result: load, simulate, measure, write. The clock here is only for `timing`.

An order is made of names and numbers alone, so that it can be handed to another process.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from coda.compiled import is_compiled
from coda.contention.config import ContentionConfig
from coda.errors import InvalidInput
from coda.policy.config import Component, PolicyConfig
from coda.policy.cores import CoresRule
from coda.policy.policies import POLICIES, Policy
from coda_sim.engine.simulation import Simulation
from coda_sim.engine.simulation_config import Costs, SimulationConfig
from coda_sim.results.job_records import write_records
from coda_sim.results.metrics import RunMetrics, metrics_of, window_of
from coda_sim.results.series import Series, series_of
from coda_sim.results.summary import RunResult, Timing
from coda_sim.workload.cluster_shape import ClusterShape, shape_from_argument
from coda_sim.workload.job_models import JobModelConfig, JobModelDraws
from coda_sim.workload.model_profiles import ProfileSet, profile_set
from coda_sim.workload.workload import Load, WorkloadSource, default_warmup_s, load

PARTS: Final = tuple(part.value for part in Component)
"""What `--without` can leave out of a policy that has it."""


def _parts(policy: Policy) -> tuple[Component, ...]:
    allocator = (Component.ALLOCATOR,) if policy.cores is CoresRule.TUNED else ()
    arrays = (Component.ARRAYS, Component.BORROWING, Component.MIGRATION) if policy.has_arrays else ()
    return (*allocator, *arrays, *((Component.ELIMINATOR,) if policy.throttles else ()))


PARTS_BY_POLICY: Final[Mapping[str, tuple[Component, ...]]] = {
    name: _parts(policy) for name, policy in POLICIES.items()
}
"""The parts each policy has."""

Tell = Callable[[int, int], None]
"""How many jobs ended, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """One run. `records`: where its `jobs.csv.gz` goes; None: nowhere. `warmup_s` None: by the workload's length."""

    source: WorkloadSource
    cluster: str
    racks: int = 1
    profiles: str
    policy: str
    without: tuple[str, ...] = ()
    seed: int
    costs: Costs = field(default_factory=Costs)
    warmup_s: float | None = None
    drain_s: float = 0.0
    records: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What a run gives, without its log."""

    result: RunResult
    series: Series


def check(order: RunOrder) -> None:
    """Return for an order that can be run, without reading its workload. Raises InvalidInput."""
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
    """The cluster of an order. Raises InvalidInput."""
    shape = shape_from_argument(order.cluster)
    nodes = sum(group.nodes for group in shape.groups)
    if not 1 <= order.racks <= nodes:
        raise InvalidInput(f"--racks {order.racks}: give 1 to {nodes}, so that no rack is empty")
    return replace(shape, racks=order.racks)


def config_of(policy: str, without: Iterable[str] = (), *, racks: int = 1) -> PolicyConfig:
    """The planner's configuration for a policy, less the parts named; without levels where there is one rack."""
    levels = PolicyConfig().levels if racks > 1 else ()
    return PolicyConfig(policy=policy, without=frozenset(map(Component, without)), levels=levels)


def simulation_config_of(
    config: PolicyConfig, shape: ClusterShape, profiles: ProfileSet, costs: Costs
) -> SimulationConfig:
    """The setting in which a policy has all its parts but those that its configuration leaves out."""
    parts = set(PARTS_BY_POLICY[config.policy]) - config.without
    return SimulationConfig(
        shape=shape,
        profiles=profiles,
        config=config,
        costs=costs,
        allocator=Component.ALLOCATOR in parts,
        contention=ContentionConfig() if Component.ELIMINATOR in parts else None,
    )


def run_order(order: RunOrder, tell: Tell | None = None) -> RunOutcome:
    """Run it. The same order gives the same result but for its timing. Raises InvalidInput for a bad order."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    shape = shape_of(order)
    found = load(order.source, shape, seed=order.seed)
    profiles = profile_set(order.profiles)
    config = config_of(order.policy, order.without, racks=order.racks)
    setting = simulation_config_of(config, shape, profiles, order.costs)
    with without_collecting():
        simulation = Simulation(setting, found.gangs, JobModelDraws(profiles, JobModelConfig(), seed=order.seed))
        log = simulation.run(None if tell is None else lambda _now_s, ended: tell(ended, len(found.gangs)))
    warmup_s = default_warmup_s(found) if order.warmup_s is None else order.warmup_s
    window = window_of([g.row.submit_s for g in found.gangs], warmup_s=warmup_s, drain_s=order.drain_s)
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
    return RunOutcome(
        result=RunResult(policy=order.policy, without=order.without, seed=order.seed, metrics=metrics, timing=timing),
        series=series,
    )


def _with_workload(metrics: RunMetrics, found: Load) -> RunMetrics:
    return {
        **metrics,
        "jobs_refused": (metrics["jobs_refused"] or 0) + len(found.refused),
        "rows_skipped": found.rows_skipped,
        "rows_changed": found.rows_changed,
    }


@contextmanager
def without_collecting() -> Iterator[None]:
    """No search for reference cycles: a run makes none worth finding, and looks at its whole log each time."""
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
