"""What one cycle leaves for the next. It saves time and changes no answer. Nothing is decided here.

Read `gang_class` and `queue` (who waits), `job_facts`, `holdings`, `usage` and `running_jobs` (who runs),
`array_capacity` and `quotas` (what is left), and `inadmissible` (what need not be searched again). Then `world_index`,
which keeps the others up to date with the world, and `judging_budget`: what there is time for.
"""

from coda.cache.queue import wake_s
from coda.cache.world_index import PlannerCache

__all__ = ["PlannerCache", "wake_s"]
