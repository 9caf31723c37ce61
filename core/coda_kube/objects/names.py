"""The names that Coda uses in a cluster. No other module may spell a `coda.scheduler/` key."""

from __future__ import annotations

from typing import Final

GROUP: Final = "coda.scheduler"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "TrainingJob"
NODE_PROFILE: Final = "NodeProfile"
VIRTUAL_CLUSTER: Final = "VirtualCluster"
ARRAY_QUOTA: Final = "ArrayQuota"

SYSTEM_NAMESPACE: Final = "coda-system"
PLANNER_LEASE: Final = "coda-planner"
OPERATOR_LEASE: Final = "coda-operator"

SCHEDULER: Final = "coda"  # the profile of kube-scheduler that places Coda's pods

# Field managers: one per part, so that each status field has one writer.
OPERATOR: Final = "coda-operator"
EXTENDER: Final = "coda-extender"
AGENT: Final = "coda-agent"
AGENT_PROGRESS: Final = "coda-agent-progress"  # an apply takes away what its manager does not say again

FINALIZER: Final = f"{GROUP}/operator"
RANK_FINALIZER: Final = f"{GROUP}/rank"  # on pods: their end is seen, whoever deletes them and whenever

# On pods of a gang.
LABEL_JOB: Final = f"{GROUP}/job"
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_RANK: Final = f"{GROUP}/rank"
ANNOTATION_PLAN: Final = f"{GROUP}/plan"
ANNOTATION_MAIN: Final = f"{GROUP}/main-container"  # its name: a webhook may put containers of its own before it
ANNOTATION_GPU_MEMORY: Final = f"{GROUP}/gpu-memory"  # the job's `gpuMemory`: no agent lets a guest have less
ANNOTATION_BOOT: Final = f"{GROUP}/boot"  # the boot id of its node when it was created: a reboot ends every container
ANNOTATION_CORES: Final = f"{GROUP}/cores"  # "auto": agents on all nodes of the gang measure for its search

# On pods that are CPU jobs. The gate keeps a pod from kube-scheduler until the planner releases it; the annotations say
# how it was released: the placement's id as for a gang, when, since when it or whoever it replaces was queued, whether
# it has cores of the GPU array, how often in a row those that it replaces gave such cores back, and what it waited for.
GATE: Final = f"{GROUP}/admission"
ANNOTATION_PLANNED: Final = f"{GROUP}/planned-time"
ANNOTATION_QUEUED: Final = f"{GROUP}/queued-time"
ANNOTATION_BORROWS: Final = f"{GROUP}/borrows"
ANNOTATION_RECLAIMED: Final = f"{GROUP}/reclaimed"
ANNOTATION_WAITS: Final = f"{GROUP}/waits"

# On TrainingJobs, on what makes CPU jobs, in their templates, and on pods: who asked. The API server writes it.
ANNOTATION_USER: Final = f"{GROUP}/user"

# "true" on a namespace: its CPU pods become CPU jobs. "false" on a pod: this pod does not.
OPT_IN: Final = f"{GROUP}/opt-in"

# "true" on a CPU pod: it serves requests, so it never has cores that it must give back.
SERVICE: Final = f"{GROUP}/service"

# On a node, a time (RFC 3339): an administrator trusts its GPUs again; failures before it count no more.
ANNOTATION_CLEARED: Final = f"{GROUP}/cleared"

# On a CustomResourceDefinition: a number that grows with its changes. The hook applies none that is older.
ANNOTATION_DEFINITION: Final = f"{GROUP}/definition"

# On the Leases: which version their holder runs.
ANNOTATION_VERSION: Final = f"{GROUP}/version"

# On the extender's own pod; the Service selects it.
LABEL_LEADER: Final = f"{GROUP}/leader"

# "true" on a namespace: its CPU pods may be throttled for training jobs. "false" on a pod: this pod may not. "protect"
# on a pod with GPUs: others may be throttled for it, as for a rank of a TrainingJob.
THROTTLING: Final = f"{GROUP}/throttling"

# In the pod of rank 0, and of all ranks of a job that wants notice of a stop: a directory of its own, in which the job
# says how far it is and hears that it is to stop (docs/progress.md, docs/stops.md).
JOB_VOLUME: Final = "coda-job"
JOB_DIRECTORY: Final = "/run/coda-job"
JOB_VARIABLE: Final = "CODA_JOB_DIR"
PROGRESS_FILE: Final = "progress"
STOP_FILE: Final = "stop"  # by the agent: the job is to save and end

# In a container that shares a GPU: the library that its programs load (docs/gpu-sharing.md). "false" in the environment
# of a guaranteed job's main container: not in this job, which nobody joins then.
SHARING_LIBRARY: Final = "/run/coda/lib/libcodagpu.so"
SHARING_VARIABLE: Final = "CODA_SHARING"

POOL_TAINT: Final = f"{GROUP}/pool"

GPU: Final = "nvidia.com/gpu"
POOL_TAINTS: Final = GPU
"""Keys of other taints of GPU nodes, separated by commas, as the chart's `pool.taints` has them by default. GKE taints
every GPU node so."""


def pod_name(job_name: str, attempt: int, rank: int) -> str:
    """`<job>-<attempt>-<rank>`. With the attempt in its name, a late pod of an old attempt cannot be confused."""
    return f"{job_name}-{attempt}-{rank}"


def rank_hostname(attempt: int, rank: int) -> str:
    """A rank's host name under the job's headless Service: at most 63 characters for any job."""
    return f"attempt-{attempt}-rank-{rank}"
