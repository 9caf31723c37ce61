"""Small simulations in one line, for these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coda.contention import ContentionConfig
from coda.cycle import decide
from coda.policy import PolicyConfig
from coda_sim.engine import Costs, RunLog, Simulation, SimulationConfig
from coda_sim.engine.simulation_config import Decide
from coda_sim.runs import config_of, simulation_config_of
from coda_sim.traces import Row
from coda_sim.workload import Cores, JobModelConfig, JobModelDraws, gangs_from_rows, profile_set, shape_from_text
from coda_sim.workload.inaccuracy import EXACT, Inaccuracy


def only(model: str, *, cpu_gb_per_s: float = 0.0) -> JobModelConfig:
    """Traits under which every GPU job trains this model, and every CPU job wants this bandwidth."""
    return JobModelConfig(models=((model, 1.0),), heavy_share=0.0, light_gb_per_s=cpu_gb_per_s)


def simulated(
    rows: Iterable[Row],
    cluster: str = "1x4x8",
    *,
    config: PolicyConfig | None = None,
    traits: JobModelConfig | None = None,
    costs: Costs | None = None,
    decide: Decide = decide,
    seed: int = 0,
    allocator: bool = False,
    contention: ContentionConfig | None = None,
    inaccuracy: Inaccuracy = EXACT,
    tell: Callable[[float, int], None] | None = None,
) -> RunLog:
    """The log of these rows on this cluster; no row may be one that fits no node."""
    shape, profiles = shape_from_text(cluster), profile_set("paper")
    gangs, refused = gangs_from_rows(tuple(rows), shape, Cores())
    assert not refused
    simulation_config = SimulationConfig(
        shape=shape,
        profiles=profiles,
        planner=config or PolicyConfig(),
        costs=costs or Costs(),
        allocator=allocator,
        contention=contention,
        inaccuracy=inaccuracy,
    )
    return Simulation(
        simulation_config, gangs, JobModelDraws(profiles, traits or JobModelConfig(), seed=seed), decide=decide
    ).run(tell)


def simulated_under(
    policy: str,
    rows: Iterable[Row],
    cluster: str = "1x4x8",
    *,
    without: Iterable[str] = (),
    traits: JobModelConfig | None = None,
    costs: Costs | None = None,
    decide: Decide = decide,
) -> RunLog:
    """The log of these rows under a policy with all its parts but those left out, as `coda simulate` runs it."""
    shape, profiles = shape_from_text(cluster), profile_set("paper")
    gangs, refused = gangs_from_rows(tuple(rows), shape, Cores())
    assert not refused
    simulation_config = simulation_config_of(config_of(policy, without), shape, profiles, costs or Costs())
    return Simulation(
        simulation_config, gangs, JobModelDraws(profiles, traits or JobModelConfig(), seed=0), decide=decide
    ).run()


def spans(log: RunLog) -> dict[str, list[tuple[float, float]]]:
    """Start and end of every piece, by job id of the trace."""
    return {entry.gang.row.job_id: [(piece.start_s, piece.end_s) for piece in entry.pieces] for entry in log.entries}
