"""The vocabulary: frozen values that every decision takes; `outcomes` has what it returns,
`demands` what a pod says about nodes.

What must not live here: behaviour that decides anything, and anything that knows JSON.

One word per idea, the same in the CRD, the code and the documents:

job         a TrainingJob: a gang of `replicas` equal ranks
rank        one member of the gang, 0-based; rank 0 hosts the rendezvous
attempt     one try at running the whole gang, 1-based; pods carry it in their names
request     what one rank asks of a node, as the API server would admit it
placement   rank -> node for one attempt, a durable plan written to the job's status
commit      write the placement; from here on its capacity is withheld
release     second write; from here on the operator may create the pods
withhold    count capacity as taken though no pod uses it yet
refusal     why a waiting job does not start now: code, sentence, numbers, holders
holder      a job that has what a refused job needs
in flight   a foreign pod that passed the filter and is not seen bound yet
domain      the nodes that share one value of a topology level's label (a rack, a zone)
epoch       the planner Lease's count of holders: a plan of an older one is stale
user        who submitted a job; fair shares are counted per user, quotas of GPUs per virtual cluster
stop        a running job gives its place up for another: aborted, migrated or preempted
borrow      run on cores or nodes that belong to another array, until it wants them back
wish        the cores per rank that the tuning of a running job wants next
grant       the planner's yes to a wish: from here on growth is withheld, and the operator resizes the ranks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

from coda.model.constraints import NodeConstraints
from coda.model.resources import Resources

JobId = NewType("JobId", str)
"""`namespace/name`: unique among live jobs, and what people type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Cores per rank that a running job wants. `sequence` grows with each wish of one attempt, from 1."""

    sequence: int
    cores: int  # of the main container, at least 1
    since_s: float  # seconds since 1970
    deadline_s: float  # nobody waits for an answer after this


@dataclass(frozen=True, slots=True, kw_only=True)
class WishAnswer:
    """The planner's last word on wishes of an attempt. A granted one is in force until the resize it led to has ended:
    growth is withheld that long. A refused one leaves the cores as they are."""

    sequence: int  # of the wish
    granted: bool
    cores: int  # per rank: granted; of a refused wish, the most that could have been granted
    answered_s: float
    deadline_s: float  # every rank has its growth by then, or all of it is taken back
    code: str = ""  # why not, one word
    message: str = ""


class StopCause(Enum):
    """What for a running job is stopped, and with it what becomes of its work."""

    RECLAIM = "Reclaim"  # a GPU job wants borrowed cores back: aborted; what it had not saved is lost
    MIGRATE = "Migrate"  # a large GPU job wants its sub-array back: saved first, goes on elsewhere
    PREEMPT = "Preempt"  # a job that goes before it: saved first, goes on later


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """The planner's word that a running attempt ends, so that `by` can start or grow. It is never taken back."""

    cause: StopCause
    by: JobId
    since_s: float  # seconds since 1970


class PlacementState(Enum):
    """Committed: capacity withheld. Released: pods may be created."""

    COMMITTED = "Committed"
    RELEASED = "Released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One attempt's durable plan; `nodes[rank]` is a node name."""

    attempt: int
    plan_id: str
    epoch: int
    generation: int  # metadata.generation of the spec it was made for
    state: PlacementState
    nodes: tuple[str, ...]
    cpus_per_replica: int
    committed_s: float  # seconds since 1970
    bind_deadline_s: float
    borrows: bool = False  # as `Start.borrows`
    answer: WishAnswer | None = None  # to the last wish of this attempt
    stop: StopOrder | None = None  # with one the plan holds no more: its pods go away


class Phase(Enum):
    """Where a job is. The legal changes are `lifecycle.NEXT`."""

    __hash__ = object.__hash__  # asked for with every look at a job

    QUEUED = "Queued"  # waits for a placement; no pods
    LAUNCHED = "Launched"  # all pods of the attempt were created
    STARTING = "Starting"  # all bound
    RUNNING = "Running"  # all main containers have started
    RESTARTING = "Restarting"  # the attempt is being rolled back; its pods are going away
    SUSPENDED = "Suspended"  # by spec.suspend; no pods once they are gone
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


FINISHED = frozenset({Phase.SUCCEEDED, Phase.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A TrainingJob as the planner sees it."""

    id: JobId
    uid: str
    phase: Phase
    attempt: int
    generation: int
    edited: bool = False  # queued, and the operator has not accepted `generation` yet: it must not start
    replicas: int
    request: Resources  # of one rank
    cpus_per_replica: int = 0  # whole cores proposed for the main container of each rank
    constraints: NodeConstraints = field(default_factory=NodeConstraints)
    priority: int = 0
    queued_s: float = 0.0  # since when it counts as waiting: its age in the queue
    not_before_s: float = 0.0  # back-off: no start before this moment
    avoid: frozenset[str] = frozenset()  # node names this job keeps away from for a while
    within: str | None = None  # topology level whose one domain must hold all ranks
    quota: Mapping[str, int] = field(default_factory=dict)  # one rank's use by ResourceQuota key, in milli-units
    placement: Placement | None = None
    bound: frozenset[int] = frozenset()  # ranks of the current attempt whose pod has a node
    unbound: Mapping[int, str] = field(default_factory=dict)  # rank -> its pin, where the live pod has no node yet
    wish: Wish | None = None  # the last one of its attempt, answered or not
    resized: int = 0  # the last wish whose resize has ended, well or not
    pod_cpu_m: Mapping[int, int] = field(
        default_factory=dict
    )  # bound rank -> what its pod counts with, if not `request`
    user: str = ""
    virtual_cluster: str = ""
    returned: bool = False  # it was stopped for another job: it waits at the head of its array
    served_s: float = 0.0  # how long it had run at `as_of_s`, all pieces together; while it runs, it grows with time
    remaining_s: float | None = None  # run time left at `as_of_s`, where known; while it runs, it shrinks with time
    as_of_s: float = 0.0  # the moment these two are of

    @property
    def namespace(self) -> str:
        """The namespace half of the id."""
        return self.id.split("/", 1)[0]
