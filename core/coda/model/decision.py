"""What a decision answers: the plan, with what starts, what stops for it, and why everything else waits.

Frozen values, as in `model`. What must not live here: behaviour that decides anything, and anything that knows JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from coda.model.job import JobId
from coda.model.job import StopCause as StopCause  # what a stop is for is kept with the placement


class WaitCode(Enum):
    """Why a job waits. One word a user can search for; the sentence beside it says the rest."""

    __hash__ = object.__hash__  # as fast as members that are single objects allow: they are counted by the ten thousand

    EDITED = "Edited"  # its spec was edited, and the operator has not accepted that yet
    ROLLING_BACK = "RollingBack"  # pods of a plan that was dropped are still going away
    BACKING_OFF = "BackingOff"  # its last attempt failed; it may start again later
    QUOTA_EXCEEDED = "QuotaExceeded"  # a ResourceQuota leaves less than the whole gang needs
    NO_MATCHING_NODE = "NoMatchingNode"  # selector, affinity and taints leave no node
    NEVER_FITS = "NeverFits"  # not even the empty cluster could hold it
    INSUFFICIENT_GPUS = "InsufficientGPUs"
    INSUFFICIENT_CPU = "InsufficientCPU"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    INSUFFICIENT_PODS = "InsufficientPods"
    INSUFFICIENT_RESOURCES = "InsufficientResources"  # another resource, or no single one alone
    NO_DOMAIN_FITS = "NoDomainFits"  # enough is free, but in no single domain of the level it requires
    UNKNOWN_LEVEL = "UnknownTopologyLevel"  # locality names a level this installation does not have
    HELD_BY_POLICY = "HeldByPolicy"  # there is room, and the policy keeps it for others


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """Why jobs that ask for the same do not start now: one object for all of them."""

    code: WaitCode
    message: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    holders: tuple[JobId, ...] = ()


class Refusal(NamedTuple):
    """Why `job` does not start now. Two equal refusals are the same answer: nothing is rewritten.

    A tuple, because a node that fails changes what ten thousand jobs wait for, and so many are made in one round."""

    job: JobId
    generation: int  # of the spec it answers
    reason: WaitReason

    @property
    def code(self) -> WaitCode:
        """The reason's code."""
        return self.reason.code

    @property
    def message(self) -> str:
        """The reason's sentence."""
        return self.reason.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start `job` now: rank -> node in `nodes`, to be committed as one placement."""

    job: JobId
    attempt: int
    generation: int
    nodes: tuple[str, ...]
    cpus_per_replica: int
    borrows: bool = False  # some of it belongs to another array, which may want it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Give every rank of the running job `job` so many cores. Growth is free now, and withheld once this is written;
    of a shrink nothing is free before the nodes say so."""

    job: JobId
    attempt: int
    sequence: int  # of the wish
    cores: int  # per rank, of the main container


class DenialCode(Enum):
    """Why a wish is refused."""

    EXPIRED = "Expired"  # its deadline has passed
    NODE_GONE = "NodeGone"  # a node of the job is not there
    INSUFFICIENT_CPU = "InsufficientCPU"
    QUOTA_EXCEEDED = "QuotaExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Why the wish of `job` is refused. `most_cores`: per rank, what it could have now, its own included."""

    job: JobId
    attempt: int
    sequence: int
    code: DenialCode
    message: str
    most_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop the running job `job` now, so that `by` can start, or grow.

    Whoever carries it out makes the job wait again (`Queued`, next attempt, no placement), with `returned` set but for
    PREEMPT, `queued_s` as before, and `served_s`, `remaining_s` and `as_of_s` as they are then: after RECLAIM from the
    start or from what was saved, otherwise all work kept. Restarting costs what it costs. Then decide again, at the
    same moment: `by` is in no `starts`, or its wish in no `grants`, before its room is free, and gets it first. Where
    pods take time to go, the placement keeps the `StopOrder`, and `World.leaving` says what they still use."""

    job: JobId
    attempt: int
    cause: StopCause
    by: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What `decide` wants: stops, starts in the order they were decided, and a refusal for each job left waiting; for
    each open wish a grant or a denial, but for those `postponed`: decided once foreign pods in flight have landed, or
    once its stops are carried out.

    Starts and grants need no stop of the same plan; all may be carried out in any order."""

    starts: tuple[Start, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    stops: tuple[Stop, ...] = ()
    grants: tuple[Grant, ...] = ()
    denials: tuple[Denial, ...] = ()
    postponed: tuple[JobId, ...] = ()
    wake_s: float | None = None  # decide again then, if nothing changes before: time alone brings a stop
