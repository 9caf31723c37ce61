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
        "TemplateRefused": "the API server refuses its pods whatever happens: edit the template",
        "NotAdmitted": "its namespace does not admit it now; it is tried again by itself",
        "QuotaExceeded": "a ResourceQuota of the namespace refuses a pod",
        "QuotaNotCounted": "a new ResourceQuota is not counted yet; it is tried again by itself",
        "ServiceAccountMissing": "the service account of its pods does not exist yet",
        "PodRefused": "the API server refused a pod of an attempt",
        "Launched": "it has its nodes, and its pods are created",
        "Starting": "all its pods are bound",
        "Running": "all ranks have started",
        "Stopping": "it runs, and is told to save and end for another job; in `status.stopDeadline` at the latest",
        "NoAgent": "it runs, and its cores cannot be found: no agent is on the node of rank 0",
        "TuningOff": "it runs, and its cores are not looked for: the agent is set so",
        "AgentSilent": "it runs, and its cores are not looked for: the agent does not answer",
        "NodeNotReady": "a node of it is not Ready; it waits for the node (`onNodeLoss: Wait`)",
        "Suspended": "`spec.suspend` is true; its pods are gone",
        "Succeeded": "its ranks have ended well",
        "DeadlineExceeded": "it did not finish in the time that its spec allows",
        "RankFailed": "a rank ended with an error: an end of its own, it counts against `backoffLimit`",
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


def events_page() -> str:
    """Return the page."""
    heads = ("reason", "meaning")
    sections = {
        "On TrainingJobs, by the operator": OF_A_JOB,
        "On pods and owners of CPU jobs, by the extender": OF_CPU_JOBS,
        "On pods, by the agent": OF_PODS,
    }
    text = HEAD
    for title, meanings in sections.items():
        text += f"\n## {title}\n\n" + table(heads, ((code(word), cell(says)) for word, says in meanings.items()))
    codes = table(("code", "what you can do"), ((code(one.value), cell(ADVICE[one])) for one in WaitCode))
    return f"{text}\n## Why something waits\n\n`../why-jobs-wait.md` explains each.\n\n{codes}"
