"""What each second of a wait is booked as: one answer for status, history, metrics and simulator.

Of several shortages at once, one cause gets the second. A job's own state comes first (it is suspended, edited, between
two attempts), then what no other job's end can change, then the quota of its namespace, then its tenant's quota, then
what the nodes lack. Of that: the level that it wants, else GPUs before cores before memory and the rest.
Source: Philly (Jeon et al., ATC 2019), section 3.1.1. A wait is fair-share delay while the tenant has used its quota,
else fragmentation. Two things are our choice: who is within a quota while too few GPUs are free in the whole cluster
waits for capacity, which Philly counts as fragmentation; and waits that Philly does not have get causes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from coda.model.decision import WaitCode, WaitReason
from coda.model.job import Phase
from coda.model.resources import CPU, GPUS


class DelayCause(Enum):
    """Why a job waited; the value is its name in status, history, metrics and reports."""

    __hash__ = object.__hash__  # faster than the enum's own: the simulator asks at each change

    FAIR_SHARE = "FairShare"  # its tenant has used its quota, or what is free is for others who go first
    CAPACITY = "Capacity"  # within its quota, and fewer GPUs are free in all than it asks for; or no node may be used
    GPUS = "FragmentedGPUs"  # enough GPUs are free, but not on the same nodes
    CORES = "FragmentedCores"  # enough GPUs are free, but not where cores are
    MEMORY = "FragmentedMemory"  # the same of memory, pod slots, another resource, or several together
    LOCALITY = "FragmentedLocality"  # enough is free, but not close together
    QUOTA = "NamespaceQuota"  # a ResourceQuota of its namespace
    DEPENDENCY = "Dependency"  # others must end first: who leaves its nodes, or its own old pods
    HOLD = "Hold"  # its own: suspended, edited, refused until then, or it asks for what does not exist
    RESTART = "Restart"  # between two attempts
    CODA = "Coda"  # it is not judged yet, its pods are being created, or it could not be read or written
    TRIAL = "Trial"  # its trial ran: the gang had no GPU yet
    UNSEEN = "Unseen"  # no operator saw it


FRAGMENTED: Final = frozenset(
    {DelayCause.CAPACITY, DelayCause.GPUS, DelayCause.CORES, DelayCause.MEMORY, DelayCause.LOCALITY}
)
"""What Philly counts as fragmentation: the tenant is within its quota, and the gang has no place."""

SHORTAGES: Final = FRAGMENTED | {DelayCause.FAIR_SHARE, DelayCause.QUOTA}
"""What only a job waits for that is short of something."""

_SHORT: Final = frozenset(
    {
        WaitCode.INSUFFICIENT_GPUS,
        WaitCode.INSUFFICIENT_CPU,
        WaitCode.INSUFFICIENT_MEMORY,
        WaitCode.INSUFFICIENT_PODS,
        WaitCode.INSUFFICIENT_RESOURCES,
        WaitCode.NO_DOMAIN_FITS,
    }
)
"""Codes of what nodes lack: they are the tenant's own doing while it is over its quota."""

_CAUSE_BY_CODE: Final[Mapping[WaitCode, DelayCause]] = {
    WaitCode.VIRTUAL_CLUSTER_FULL: DelayCause.FAIR_SHARE,
    WaitCode.HELD_BY_POLICY: DelayCause.FAIR_SHARE,
    WaitCode.NO_USABLE_NODE: DelayCause.CAPACITY,
    WaitCode.INSUFFICIENT_GPUS: DelayCause.CAPACITY,
    WaitCode.RECLAIM_DELAYED: DelayCause.CAPACITY,
    WaitCode.SEATS_TAKEN: DelayCause.CAPACITY,
    WaitCode.GPUS_NOT_KNOWN: DelayCause.CAPACITY,
    WaitCode.GPUS_TOO_BUSY: DelayCause.CAPACITY,
    WaitCode.GPU_MEMORY_TAKEN: DelayCause.MEMORY,
    WaitCode.INSUFFICIENT_CPU: DelayCause.CORES,
    WaitCode.INSUFFICIENT_MEMORY: DelayCause.MEMORY,
    WaitCode.INSUFFICIENT_PODS: DelayCause.MEMORY,
    WaitCode.INSUFFICIENT_RESOURCES: DelayCause.MEMORY,
    WaitCode.NO_DOMAIN_FITS: DelayCause.LOCALITY,
    WaitCode.WAITS_FOR_LOCALITY: DelayCause.LOCALITY,
    WaitCode.QUOTA_EXCEEDED: DelayCause.QUOTA,
    WaitCode.ROLLING_BACK: DelayCause.DEPENDENCY,
    WaitCode.NO_MATCHING_NODE: DelayCause.HOLD,
    WaitCode.NEVER_FITS: DelayCause.HOLD,
    WaitCode.UNKNOWN_LEVEL: DelayCause.HOLD,
    WaitCode.EDITED: DelayCause.HOLD,
    WaitCode.SHARING_OFF: DelayCause.HOLD,
    WaitCode.NO_SEATS: DelayCause.HOLD,
    WaitCode.BACKING_OFF: DelayCause.RESTART,
}
"""By the code alone, as far as it says; every other code is Coda's own."""

_CAUSE_BY_WORD: Final[Mapping[str, DelayCause]] = {
    **{code.value: cause for code, cause in _CAUSE_BY_CODE.items()},  # in records of older versions
    "Suspended": DelayCause.HOLD,
    "Restarting": DelayCause.RESTART,
    **{cause.value: cause for cause in DelayCause},
}


def delay_cause(reason: WaitReason) -> DelayCause:
    """Return what a wait for this reason is booked as."""
    code = reason.code
    if reason.over_quota and code in _SHORT:
        return DelayCause.FAIR_SHARE
    if code is WaitCode.NO_DOMAIN_FITS or code not in _SHORT or not reason.short_of:
        return _CAUSE_BY_CODE.get(code, DelayCause.CODA)
    if reason.short_of == GPUS:
        return DelayCause.GPUS if reason.scattered else DelayCause.CAPACITY
    return DelayCause.CORES if reason.short_of == CPU else DelayCause.MEMORY


def cause_of_word(word: str) -> DelayCause:
    """Return the cause that a record or a status names; what it does not know is Coda's."""
    return _CAUSE_BY_WORD.get(word, DelayCause.CODA)


def cause_in_phase(phase: Phase, word: str, *, waits_for_nodes: bool) -> DelayCause:
    """Return what a live job's wait is booked as, by its status. `word`: the planner's cause, or its code; "": none.

    `waits_for_nodes`: it is promised nodes that others have yet to leave."""
    if phase is Phase.SUSPENDED:
        return DelayCause.HOLD
    if phase is not Phase.QUEUED:
        return DelayCause.RESTART
    if waits_for_nodes:
        return DelayCause.DEPENDENCY
    return cause_of_word(word)
