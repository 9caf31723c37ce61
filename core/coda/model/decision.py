"""The result of `decide`: which jobs start, which stop for them, and why every other job waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from coda.model.job import JobId
from coda.model.job import StopCause as StopCause  # a placement stores it too


class WaitCode(Enum):
    """Why a job waits, as one word that a user can search for; the sentence beside it says the rest."""

    __hash__ = object.__hash__  # faster than the enum's own: tens of thousands are counted in one cycle

    UNREADABLE = "Unreadable"  # a field of its object cannot be read
    UNDECIDABLE = "Undecidable"  # judging it raised an error of our own
    JUDGED_IN_TURNS = "JudgedInTurns"  # judging it takes long, so it is tried less often than others
    EDITED = "Edited"  # its spec was edited, and the operator has not accepted the edit yet
    STATUS_UNWRITABLE = "StatusUnwritable"  # writes to its status fail: it is left out for a while
    STATUS_WRITE_SLOW = "StatusWriteSlow"  # writes to its status, or of its namespace, take long
    CHANGED_MEANWHILE = "ChangedMeanwhile"  # others change it between a decision and its write, again and again
    ROLLING_BACK = "RollingBack"  # pods of a dropped placement still exist
    BACKING_OFF = "BackingOff"  # its last attempt failed; it may start again later
    QUOTA_EXCEEDED = "QuotaExceeded"  # a ResourceQuota leaves less than the whole gang needs
    VIRTUAL_CLUSTER_FULL = "VirtualClusterFull"  # its virtual cluster may not borrow, and its quota leaves too little
    NO_MATCHING_NODE = "NoMatchingNode"  # selector, affinity (also of volumes) and taints leave no node
    NEVER_FITS = "NeverFits"  # even the empty cluster cannot hold it
    NO_USABLE_NODE = "NoUsableNode"  # each one that matches is cordoned, not ready, being removed, or avoided
    INSUFFICIENT_GPUS = "InsufficientGPUs"
    INSUFFICIENT_CPU = "InsufficientCPU"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    INSUFFICIENT_PODS = "InsufficientPods"
    INSUFFICIENT_RESOURCES = "InsufficientResources"  # another resource, or several together
    NO_DOMAIN_FITS = "NoDomainFits"  # enough is free, but not in one domain of the required level
    WAITS_FOR_LOCALITY = "WaitsForLocality"  # the same, of a level that it prefers for a while
    UNKNOWN_LEVEL = "UnknownTopologyLevel"  # locality names a level that this installation does not have
    HELD_BY_POLICY = "HeldByPolicy"  # capacity is free, and the policy keeps it for others
    SHARING_OFF = "SharingOff"  # it asks for a seat, and this installation has none
    NO_SEATS = "NoSeats"  # no node that accepts it offers seats
    SEATS_TAKEN = "SeatsTaken"  # every seat that it could have is taken
    GPU_MEMORY_TAKEN = "GPUMemoryTaken"  # beside those that share a GPU, its memory would not do
    GPUS_NOT_KNOWN = "GPUsNotKnown"  # they belong to jobs that cannot be joined yet, or nobody can say whose they are
    GPUS_TOO_BUSY = "GPUsTooBusy"  # beside those that share a GPU, it would be too slow
    RECLAIM_DELAYED = "ReclaimDelayed"  # what it needs was lent, and is given back at a known time


HOPELESS: Final = frozenset({WaitCode.NO_MATCHING_NODE, WaitCode.NEVER_FITS, WaitCode.UNKNOWN_LEVEL})
"""No end of a job helps: the job, the nodes or the levels must change first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """Why a job does not start now: one object for all jobs that ask for the same."""

    code: WaitCode
    message: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    holders: tuple[JobId, ...] = ()
    over_quota: bool = False  # with this gang its tenant would hold more than its own, on some level
    short_of: str = ""  # the resource that nodes have too little of, the first if there are several; empty: none
    scattered: bool = False  # enough of that is free in all


def name_for(namespace: str, job: JobId) -> str:
    """Return what users of a namespace may know of a job: all, or `<its namespace>/*` for one of another namespace."""
    own = job.split("/", 1)[0]
    return str(job) if own == namespace else f"{own}/*"


class Refusal(NamedTuple):
    """Why `job` does not start now. Equal refusals are the same answer: nothing is written again.

    A tuple for speed: if a node fails, one cycle makes ten thousand of them."""

    job: JobId
    generation: int  # of the spec it answers
    reason: WaitReason

    @property
    def code(self) -> WaitCode:
        """The code of the reason."""
        return self.reason.code

    @property
    def message(self) -> str:
        """The sentence of the reason."""
        return self.reason.message

    @property
    def holders(self) -> tuple[str, ...]:
        """The holders as the job's users may see them: of another namespace only that."""
        namespace = self.job.split("/", 1)[0]
        return tuple(dict.fromkeys([name_for(namespace, holder) for holder in self.reason.holders]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start `job` now: `nodes[rank]` is a node name. It is committed as one placement."""

    job: JobId
    attempt: int
    generation: int
    nodes: tuple[str, ...]
    cpus_per_replica: int
    borrows: bool = False  # part of the capacity belongs to another array, which may take it back
    gpus: tuple[int, ...] = ()  # `gpus[rank]`: the GPU of its node on which it gets a seat; empty: GPUs of its own
    speed: float = 1.0  # expected of a job on seats, relative to alone
    beside: tuple[JobId, ...] = ()  # of a job on seats: the jobs that have these GPUs whole
    joinable: bool = False  # with whole GPUs: its pods bring what they need to be protected from jobs on seats


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Give every rank of the running job `job` this many cores.

    Growth is free now, and withheld once the grant is written. A shrink frees nothing before the nodes report it."""

    job: JobId
    attempt: int
    sequence: int  # of the wish; of one that takes cores back, a number after the last
    cores: int  # per rank, of the main container
    by: JobId | None = None  # the CPU job that the cores are taken back for; None: the job wished for the change


class DenialCode(Enum):
    """Why a wish is refused."""

    EXPIRED = "Expired"  # its deadline has passed
    NODE_GONE = "NodeGone"  # a node of the job does not exist
    INSUFFICIENT_CPU = "InsufficientCPU"
    QUOTA_EXCEEDED = "QuotaExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Why the wish of `job` is refused. `most_cores`: per rank, the most it could have now, its own included."""

    job: JobId
    attempt: int
    sequence: int
    code: DenialCode
    message: str
    most_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop the running job `job` now, so that `by` can start or grow.

    The caller requeues the job: phase Queued, next attempt, no placement, same `queued_s`; `returned` is True except
    for PREEMPT. It updates `served_s`, `remaining_s` and `as_of_s`. Only RECLAIM stops a job that does not resume: all
    of its work is lost.
    Then it decides again at the same time: `by` starts, or gets its grant, only when the capacity is free, and comes
    first. If pods take time to end, the placement has a `StopOrder`, and `World.leaving` says what they still use."""

    job: JobId
    attempt: int
    cause: StopCause
    by: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error of our own in judging these jobs, nodes or quotas, by name: they are left out until they change."""

    jobs: tuple[JobId, ...] = ()
    nodes: tuple[str, ...] = ()
    quotas: tuple[str, ...] = ()
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of one cycle: stops, starts in the order of decision, and a refusal for every job left waiting.

    `returns`: the grants that take cores back for the first CPU job that could start then.
    Every open wish gets a grant or a denial, except those in `postponed`: they are answered when foreign pods in flight
    are bound, or when the stops for them are carried out. Starts and grants depend on no stop of the same decision, but
    for stops of jobs on seats: the placement of such a start is released once they are gone. Everything may be carried
    out in any order."""

    starts: tuple[Start, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    stops: tuple[Stop, ...] = ()
    grants: tuple[Grant, ...] = ()
    returns: tuple[Grant, ...] = ()
    denials: tuple[Denial, ...] = ()
    postponed: tuple[JobId, ...] = ()
    faults: tuple[Fault, ...] = ()  # found in this cycle; the jobs are refused
    wake_s: float | None = None  # decide again then, if nothing changes before: a stop becomes due with time
