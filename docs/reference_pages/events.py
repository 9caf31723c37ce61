"""The page of events: every word that Coda writes as the reason of an event, a condition or a job's end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coda.model import WaitCode
from coda_cli.explain.advice import ADVICE
from docs.reference_pages.markdown import cell, code, table

HEAD: Final = """# Events and reasons

`kubectl describe tj NAME` and `kubectl events --for tj/NAME` show them. The same word is
`status.reason` of a job, and the reason of its conditions. Kubelets and controllers add words of
their own for the end of an attempt, such as `OOMKilled` or `Evicted`.
"""

OF_A_JOB: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Queued": "accepted; it waits for a placement",
        "Resumed": "`spec.suspend` is false again; it waits for a placement",
        "Edited": "its spec was edited while it waited; it was accepted again",
        "TemplateRefused": "the API server or a claim refuses its pods whatever happens: edit the template",
        "NotAdmitted": "its namespace, or for 10 min a webhook, does not admit it; it is tried again by itself",
        "SchedulingGated": "a webhook gives its pods a scheduling gate: leave its namespace out of what that does",
        "OtherScheduler": "a webhook gives its pods to another scheduler: leave its namespace out of what that does",
        "QuotaExceeded": "a ResourceQuota of the namespace refuses a pod",
        "QuotaNotCounted": "a new ResourceQuota is not counted yet; it is tried again by itself",
        "QuotaMissing": "its priority class, or a resource, may be used only where a ResourceQuota counts it",
        "ServiceAccountMissing": "the service account of its pods does not exist yet",
        "PriorityClassMissing": "the PriorityClass of its pods does not exist yet",
        "RuntimeClassMissing": "the RuntimeClass of its pods does not exist yet",
        "PodRefused": "the API server refused a pod of an attempt",
        "VolumeClaimMissing": "a PersistentVolumeClaim that its pods mount does not exist",
        "VolumeClaimUnbound": "a PersistentVolumeClaim that its pods mount has no volume yet",
        "VolumeClaimLost": "a PersistentVolumeClaim that its pods mount is being deleted, or has lost its volume",
        "StorageClassMissing": "a StorageClass that an ephemeral volume of its pods names does not exist",
        "TrialPassed": "its trial reported a first step, or ended well: the gang is placed (`../trials.md`)",
        "TrialTimeOver": "its trial ran for as long as it may, without an error: the gang is placed",
        "TrialUnclear": "its trial ended, and its size or the cluster may be why: the gang is placed",
        "TrialSkipped": "its trial did not start in time: the gang is placed without",
        "TrialFailed": "its trial failed as the gang would have: the job has failed, and nothing is tried again",
        "Launched": "it has its nodes, and its pods are created",
        "VariablesLeftOut": "its pods on seats lack variables of its template, which a seat sets (`../gpu-sharing.md`)",
        "PreferenceIgnored": "its template prefers nodes by affinity: Coda chooses by what is required alone",
        "AwaitsVolume": "a rank is not bound yet: its volumes are being made, in ten minutes at most",
        "Starting": "all its pods are bound",
        "ContainerCreating": "a rank is not created for a minute: a long pull, or a volume that cannot be mounted",
        "PodInitializing": "an init container of a rank runs for a minute, and the start deadline goes on",
        "Running": "all ranks have started",
        "Stopping": "it runs, and is told to save and end for another job; in `status.stopDeadline` at the latest",
        "NoAgent": "it runs, and its cores cannot be found: no agent is on the node of rank 0",
        "TuningOff": "it runs, and its cores are not looked for: the agent is set so",
        "AgentSilent": "it runs, and its cores are not looked for: the agent does not answer",
        "NodeNotReady": "a node of it is not Ready; it waits for the node (`onNodeLoss: Wait`)",
        "Suspended": "`spec.suspend` is true; its pods are gone",
        "Succeeded": "its ranks have ended well",
        "Converged": "its progress met the rule of its spec: it was ended, and has succeeded (`../progress.md`)",
        "DeadlineExceeded": "it ran for as long as `spec.activeDeadlineSeconds` allows, over all attempts",
        "RankFailed": "a rank ended with an error: an end of its own, it counts against `spec.retries`",
        "InvalidImageName": "an image's name is invalid: it has failed, or is tried again if a webhook gave it",
        "StartDeadlineExceeded": "a rank did not start in time, an image that cannot be pulled perhaps",
        "BindDeadlineExceeded": "kube-scheduler did not bind all ranks in time; it is placed again",
        "Unschedulable": "kube-scheduler refuses the node that a rank is pinned to; it is placed again",
        "PlanDropped": "its placement was withdrawn before its pods ran; it is placed again",
        "SpecChanged": "its spec was edited while its pods were created; it is placed again",
        "StatusLost": "its status was lost or restored; the attempt is rolled back",
        "PodDeleted": "somebody deleted a pod of it; the attempt is rolled back",
        "PodGone": "a pod of it is gone; the attempt is rolled back",
        "NodeLost": "a node of it is gone or not Ready for too long; the attempt is rolled back",
        "NodeOutage": "its node was restarted or cut off; the attempt is rolled back",
        "Disrupted": "Kubernetes ended a pod of it (a drain, pressure on the node)",
        "Upgraded": "it left its seats, because GPUs of its own were free for it",
        "LentGPUsReturned": "it was stopped because a VirtualCluster needs its own GPUs, which were lent",
        "Preempted": "it was stopped, as resumable, for a job that is before it",
        "Migrated": "it was stopped, as resumable, to make place for a large job; it has another place",
        "Reclaimed": "it was stopped, or a CPU job evicted, to give back what it had borrowed",
    }
)

OF_CPU_JOBS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Reclaimed": "it was evicted, and for whom",
        "ReclaimRefused": "a disruption budget kept it; which one, and who waits for it",
        "PlaceLost": "its node cannot take it any more: its owner makes it anew, or you must",
        "PlaceTaken": "for 5 s or longer others were bound to its place before it was released; it is tried again",
    }
)

OF_PODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Throttled": "an agent limits a CPU pod's memory bandwidth or cores; also on the ranks that it helps",
        "ThrottleReleased": "an agent loosened or ended such a limit, and why",
    }
)

OF_NODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SuspectGPU": "Coda places nothing there for a while: why, until when, and how to end it (`../failures.md`)",
        "OnProbation": "jobs are placed there again; one that succeeds ends the probation (`../failures.md`)",
        "Trusted": "its GPUs are trusted again",
    }
)

OF_A_SEARCH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Found": "it has the fewest cores that keep its GPUs as busy as more cores would",
        "Limited": "its GPUs got busier up to the most cores that its nodes could give: more may help",
        "TooNoisy": "more cores may help, but the utilisation varies too much to tell: it keeps what it had",
        "Unresponsive": "its GPUs do not show what cores it needs (they are as busy with any count, or there are "
        "several and the CPU use of some rank is unknown): it keeps what it had",
        "Unmeasurable": "its GPUs show no utilisation that can be used",
        "Refused": "its cores cannot be changed",
        "Abandoned": "the search was cut off: the attempt ended, a node was lost, or a deadline passed",
        "AdviseOnly": "agents only advise here (`agent.tune`): the message names a count that should be tried",
        "NotMeasured": "the agent cannot measure its GPUs: the message says why",
        "TooFewSamples": "measured again: its GPUs could not be sampled often enough",
        "Idle": "measured again: its GPUs were idle",
        "Paused": "measured again: it evaluated or saved for most of the window",
        "Disturbed": "measured again: something else moved the utilisation of a rank",
        "OtherCores": "measured again: a rank had other cores than its status says",
        "RanksUnknown": "measured again: agents on other nodes did not tell of their ranks",
        "BestEffort": "never changed: its main container asks for no cores",
        "RestartContainer": "never changed: its resizePolicy says that a change restarts the container",
        "ResizeUnsupported": "never changed: its node or its API server cannot resize pods",
        "AskedAnyway": "never changed, or not so low: an init container, or `spec.resources`, asks for as many",
        "StaticCPUManager": "never changed: its node gives whole cores to pods permanently",
        "Infeasible": "never changed: the kubelet says that its node can never give the cores",
        "NodeTooSmall": "the cores were refused: the node has fewer",
        "ResizeRefused": "the cores were refused by the API server: the message says why",
        "CoresPerGPU": "the cores were refused: the platform limits them by the rank's GPUs",
        "QuotaExceeded": "the cores were refused by a ResourceQuota of the namespace",
        "InsufficientCPU": "the cores were refused: its nodes have no more free",
        "NodeGone": "the cores were refused: a node of it does not exist any more",
        "Expired": "the cores were not granted in time: the planner was away",
        "DeadlineExceeded": "the cores did not come in time, and the kubelet said why",
        "NoAnswer": "the cores did not come in time, and no kubelet said why: it is asked again once",
    }
)

OF_QUOTAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Divided": "Active: the nodes of the ArrayQuota are divided as it says",
        "NoNodes": "not Active: the ArrayQuota selects no node",
        "PolicyWithoutArrays": "not Active: the planner's policy has no arrays",
        "Disjoint": "not Overlapping: no other object names its nodes or namespaces",
        "SelectedTwice": "Overlapping: an older ArrayQuota selects some of its nodes, and counts there",
        "NamedTwice": "Overlapping: another VirtualCluster names some of its namespaces; the older counts",
        "HeldByJobs": "Exceeded: CPU jobs hold cores that belong to the GPU array now",
        "WithinQuota": "not Exceeded, or not Oversubscribed",
        "TopLevel": "not Detached: it names no parent",
        "InTree": "not Detached: its parent counts",
        "ParentMissing": "Detached: the parent that it names does not exist",
        "ParentLoop": "Detached: its parents name each other in a loop",
        "TooDeep": "Detached: it is deeper in the tree than levels are counted",
        "ParentOwnsLess": "Oversubscribed: it owns a part of what it asks for, since its parent owns less",
        "ChildrenAskForMore": "Oversubscribed: those below it ask for more than it owns, and share it",
        "ClusterHasLess": "Oversubscribed: the top-level VirtualClusters own more together than all nodes have",
    }
)


def events_page() -> str:
    """Return the page."""
    heads = ("reason", "meaning")
    sections = {
        "On TrainingJobs, by the operator": OF_A_JOB,
        "On pods and owners of CPU jobs, by the extender": OF_CPU_JOBS,
        "On pods, by the agent": OF_PODS,
        "On nodes, by the operator": OF_NODES,
        "Of a search for cores, in `status.tuning` and `status.resize`": OF_A_SEARCH,
        "Of the conditions of ArrayQuotas and VirtualClusters": OF_QUOTAS,
    }
    text = HEAD
    for title, meanings in sections.items():
        text += f"\n## {title}\n\n" + table(heads, ((code(word), cell(says)) for word, says in meanings.items()))
    codes = table(("code", "what you can do"), ((code(one.value), cell(ADVICE[one])) for one in WaitCode))
    return f"{text}\n## Why something waits\n\n`../why-jobs-wait.md` explains each.\n\n{codes}"
