"""One simulated run: events in virtual time around the planner's own `decide`.

Nothing is measured or reported here. Read `event_queue`, `job_run` and `cluster` (who holds what), `pace` (how fast a
job goes), then `simulation`: the event loop. `allocator_model`, `contention_model` and `spare_cores` connect parts of
the core to it; `log`, `usage_trail` and `idle_causes` record what happens.
"""

from __future__ import annotations

from coda_sim.engine.cluster import nodes_of_shape
from coda_sim.engine.job_run import job_from_gang
from coda_sim.engine.log import CAUSES, RunLog
from coda_sim.engine.simulation import Simulation
from coda_sim.engine.simulation_config import COSTS_BY_SETTING, Costs, CostSetting, SimulationConfig

__all__ = [
    "CAUSES",
    "COSTS_BY_SETTING",
    "CostSetting",
    "Costs",
    "RunLog",
    "Simulation",
    "SimulationConfig",
    "job_from_gang",
    "nodes_of_shape",
]
