"""What the operator knows: jobs, pods and nodes, read from caches.

Nothing is decided or written to the API server here. Read `cluster` (all that is known), then `job_record` (a job, read
once per step), `packed_jobs` (how it is kept), `rank_pods` and `rank_sizes` (a pod as the life cycle sees it), `nodes`,
`agents` and `experience`.
"""

from coda_operator.view.agents import Agents
from coda_operator.view.cluster import ClusterView
from coda_operator.view.job_record import JobRecord

__all__ = ["Agents", "ClusterView", "JobRecord"]
