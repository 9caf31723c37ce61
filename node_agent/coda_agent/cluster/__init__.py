"""What the agent reads from the API server and writes there. It decides nothing about pods or jobs.

Read `pods` and `jobs` (objects as the agent needs them), `caches` (watches and writes), then `background_writes`."""

from coda_agent.cluster.background_writes import BackgroundWrites
from coda_agent.cluster.caches import READ_ERRORS, AgentCaches
from coda_agent.cluster.jobs import TunedJob, tuned_job_from_json
from coda_agent.cluster.pods import LocalPod, local_pod_from_json

__all__ = [
    "READ_ERRORS",
    "AgentCaches",
    "BackgroundWrites",
    "LocalPod",
    "TunedJob",
    "local_pod_from_json",
    "tuned_job_from_json",
]
