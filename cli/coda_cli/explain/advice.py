"""One suggestion for each reason to wait."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coda.model import WaitCode

ADVICE: Final[Mapping[WaitCode, str]] = MappingProxyType(
    {
        WaitCode.UNREADABLE: "delete it and submit it again",
        WaitCode.UNDECIDABLE: "tell whoever runs Coda: the extender's log has the error",
        WaitCode.JUDGED_IN_TURNS: "ask for less that takes long to compare: fewer node selector terms",
        WaitCode.EDITED: "wait a moment; if it lasts, look whether the operator runs",
        WaitCode.STATUS_UNWRITABLE: "look at the events: something refuses to store its status, a webhook perhaps",
        WaitCode.STATUS_WRITE_SLOW: "nothing to do; if it lasts, a webhook or the API server is slow",
        WaitCode.CHANGED_MEANWHILE: "find out who changes it all the time: kubectl get -o yaml --show-managed-fields",
        WaitCode.ROLLING_BACK: "nothing to do; if it lasts, its old pods do not end",
        WaitCode.BACKING_OFF: "see with coda explain why its last attempt failed; it is tried again by itself",
        WaitCode.QUOTA_EXCEEDED: "ask for less or for a larger ResourceQuota, or end another job of the namespace",
        WaitCode.VIRTUAL_CLUSTER_FULL: "ask for fewer GPUs or for a larger quota, or end another job of its "
        "VirtualCluster",
        WaitCode.NO_MATCHING_NODE: "compare its selector, affinity (also of volumes) and tolerations with the nodes",
        WaitCode.NEVER_FITS: "ask for less, or drop locality.required: even the empty cluster could not hold it",
        WaitCode.NO_USABLE_NODE: "wait for its nodes, or for others; kubectl get nodes and coda doctor say more",
        WaitCode.INSUFFICIENT_GPUS: "ask for fewer GPUs, or wait until a job of those that hold them ends",
        WaitCode.INSUFFICIENT_CPU: "ask for fewer cores per rank, or wait until a job of those that hold them ends",
        WaitCode.INSUFFICIENT_MEMORY: "ask for less memory per rank, or wait until a job of those that hold it ends",
        WaitCode.INSUFFICIENT_PODS: "wait: nodes have all the pods that they may have",
        WaitCode.INSUFFICIENT_RESOURCES: "ask for less of what is short, or wait",
        WaitCode.NO_DOMAIN_FITS: "drop locality.required if the job bears it: enough is free, but not together",
        WaitCode.WAITS_FOR_LOCALITY: "nothing to do, or shorten locality.preferred: it takes nodes apart later",
        WaitCode.UNKNOWN_LEVEL: "name a topology level that this installation has (topologyLevels in the chart)",
        WaitCode.HELD_BY_POLICY: "nothing to do: what is free is kept for others who go first",
        WaitCode.SHARING_OFF: "set serviceClass to Guaranteed, or ask for seats (CODA_SHARING of the extender)",
        WaitCode.NO_SEATS: "set serviceClass to Guaranteed, or ask for agents that offer seats",
        WaitCode.SEATS_TAKEN: "wait until an opportunistic job ends, or set serviceClass to Auto or Guaranteed",
        WaitCode.GPU_MEMORY_TAKEN: "say in gpuMemory what a rank needs, or wait until one of those on its GPUs ends",
        WaitCode.GPUS_NOT_KNOWN: "wait a few minutes until the agents have measured these jobs, or set serviceClass to "
        "Auto or Guaranteed",
        WaitCode.GPUS_TOO_BUSY: "wait until one of those on its GPUs ends",
        WaitCode.RECLAIM_DELAYED: "nothing to do: it starts by itself at the time that the reason says",
    }
)
"""What a user can do. Tests keep it complete."""


def advice_for(code: str) -> str:
    """Return the suggestion for a code; empty for one that this version does not know."""
    return next((text for known, text in ADVICE.items() if known.value == code), "")
