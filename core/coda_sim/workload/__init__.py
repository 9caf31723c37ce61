"""What is simulated: jobs from a trace or a generated month, the models they train, and the shape of the cluster.

Nothing here runs or decides. Read `cluster_shape` and `gangs` (from row to job), `model_profiles`, `speed_curves` and
`job_models` (what jobs train), `month_config` and `month` (the generated month), then `workload`: the entry.
"""

from __future__ import annotations

from coda_sim.workload.cluster_shape import ClusterShape, shape_from_text
from coda_sim.workload.gangs import Cores, Gang, RefusedRow, gangs_from_rows
from coda_sim.workload.job_models import JobModelConfig, JobModelDraws
from coda_sim.workload.model_profiles import profile_set
from coda_sim.workload.month_config import MonthConfig
from coda_sim.workload.workload import WorkloadSource, load

__all__ = [
    "ClusterShape",
    "Cores",
    "Gang",
    "JobModelConfig",
    "JobModelDraws",
    "MonthConfig",
    "RefusedRow",
    "WorkloadSource",
    "gangs_from_rows",
    "load",
    "profile_set",
    "shape_from_text",
]
