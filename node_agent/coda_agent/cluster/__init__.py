"""What the agent reads from the API server and writes there. It decides nothing about pods or jobs.

Read `claims` (with `put_off`), `pods` and `jobs` (objects as the agent needs them), `caches` (watches and writes), then
`background_writes`. `rank_reports` and `peers` are what agents tell each other."""

from coda_agent.cluster.background_writes import BackgroundWrites
from coda_agent.cluster.caches import READ_ERRORS, AgentCaches
from coda_agent.cluster.claims import Claims
from coda_agent.cluster.jobs import TunedJob, tuned_job_from_json
from coda_agent.cluster.peers import Peers
from coda_agent.cluster.pods import LocalPod, local_pod_from_json
from coda_agent.cluster.rank_reports import ranks_json

__all__ = [
    "READ_ERRORS",
    "AgentCaches",
    "BackgroundWrites",
    "Claims",
    "LocalPod",
    "Peers",
    "TunedJob",
    "local_pod_from_json",
    "ranks_json",
    "tuned_job_from_json",
]
