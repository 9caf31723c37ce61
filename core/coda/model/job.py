"""A job, its placement and its wishes; and the glossary.

One word per idea, the same in the CRD, the code and the documents:

job           a TrainingJob: a gang of `replicas` equal ranks
rank          one member of the gang, 0-based; rank 0 hosts the rendezvous
attempt       one try at running the whole gang, 1-based; pods have it in their names
request       what one rank asks of a node, as the API server would admit it
constraints   selector, affinity terms and tolerations of a pod; an eligible node satisfies them
cycle         one pass of the planner; it takes a `World` and returns a `Decision`
cache         what one cycle leaves for the next; it saves time and changes no answer
placement     rank -> node for one attempt, written to the job's status
live          the placement of the current attempt, while it still counts
commit        write the placement; from then on its capacity is withheld
release       second write; from then on the operator may create the pods
drop          remove a placement that cannot be carried out
free          allocatable - used - in flight - withheld
withhold      count capacity as taken although no pod uses it yet
in flight     a foreign pod that passed the filter and is not seen bound yet
holding       what a placed job has on one node
refusal       why a waiting job does not start now: job, generation and wait reason
wait reason   code, sentence, numbers, holders; one for all jobs that ask for the same
holder        a job that has what a refused job needs
bottleneck    the one resource that keeps a job from starting
inadmissible  a class of jobs that is not tried again before capacity grows
promise       a start promised to a job that has waited too long; its price bounds what is kept idle for it
kept          of a node: set aside for a promised job; others start there only if they end in time, or beside it
take back     shrink a running GPU job in place: a CPU job gets cores that the CPU array owns
stop          end a running job for another one: reclaim (abort), migrate or preempt
notice        the time between the announcement of a stop and its end; the job may answer that it has saved
protected     a node where no job may be stopped; an evictable node is one where some job may
array         large GPU jobs, small GPU jobs or CPU jobs; each array has capacity of its own
borrow        run on cores or nodes of another array, until it takes them back
virtual cluster   a tenant with its own number of GPUs
user          who asked for the job, as the API server saw it, else its namespace; fair shares are counted per user
owner         of a finished job: its user
hold          the level that a gang waits for now, because it prefers one domain of it for a while
domain        the nodes that share one value of a topology level's label (a rack, a zone)
epoch         the number of times the planner's Lease changed hands: a placement with an older epoch is stale
wish          the cores per rank that the tuning of a running job wants next
grant         the planner's yes to a wish: from then on growth is withheld, and the operator resizes the ranks
denial        the planner's no to a wish: code, sentence, and the most cores it could have
reference     the normal GPU utilisation of a training job, without contention
seat          the right to use one GPU of a node beside others; an opportunistic rank has one, and no GPU of its own
sharer        an opportunistic job, or one that waits as such or runs on seats
occupants     the pods and training jobs that use one socket
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, NewType

from coda.model.constraints import NodeConstraints
from coda.model.quota_scopes import PodScopes
from coda.model.resources import Resources

JobId = NewType("JobId", str)
"""`namespace/name`: unique among live jobs, and what people type."""


LARGE_GPUS: Final = 4
"""A job with this many GPUs in all is large. Source: CODA's 4-GPU sub-array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Cores per rank that a running job wants. `sequence` counts the wishes of one attempt, from 1."""

    sequence: int
    cores: int  # of the main container, at least 1
    since_s: float  # seconds since 1970
    deadline_s: float  # nobody waits for an answer after this


TAKEN_BACK: Final = "TakenBack"
"""The code of a grant that nobody wished for: cores of the CPU array go back to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WishAnswer:
    """The planner's last answer to a wish of an attempt, or its order to give cores back (`TAKEN_BACK`).

    A grant withholds its growth until its resize has ended. A denial leaves the cores as they are."""

    sequence: int  # of the wish
    granted: bool
    cores: int  # per rank: granted; for a denial, the most that could have been granted
    answered_s: float
    deadline_s: float  # by then every rank has its growth, or all of it is taken back; or it has given back
    code: str = ""  # of a denial, or TAKEN_BACK
    message: str = ""


class LocalityStep(NamedTuple):
    """All ranks within one domain of a level, preferred for so long."""

    level: str
    for_s: float  # of waiting, above 0


class StopCause(Enum):
    """Why a running job is stopped, and what happens to its work."""

    RECLAIM = "Reclaim"  # a GPU job needs borrowed cores back: aborted, unsaved work is lost
    MIGRATE = "Migrate"  # a large GPU job needs its nodes back: a job that resumes goes on elsewhere
    PREEMPT = "Preempt"  # for a job that goes first: a job that resumes goes on later
    FAIR_SHARE = "FairShare"  # a tenant needs its own GPUs, which were lent: a job that resumes goes on later
    UPGRADE = "Upgrade"  # it has a seat, and GPUs of its own are free for it: it goes on there


RETURNING: Final = frozenset({StopCause.RECLAIM, StopCause.MIGRATE, StopCause.UPGRADE})
"""Whoever is stopped for one of these waits at the head of its queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """The planner's order to end a running attempt, so that `by` can start or grow. It is never withdrawn."""

    cause: StopCause
    by: JobId
    since_s: float  # seconds since 1970
    notice_s: float = 0.0  # how long the job may take to save and end by itself before its pods are deleted


class SharingWish(Enum):
    """What a user asks for. AUTO: opportunistic rather than a long wait."""

    __hash__ = object.__hash__  # faster than the enum's own: looked at for every job in every cycle

    AUTO = "Auto"
    GUARANTEED = "Guaranteed"
    OPPORTUNISTIC = "Opportunistic"


class PlacementState(Enum):
    """Committed: its capacity is withheld. Released: its pods may be created."""

    COMMITTED = "Committed"
    RELEASED = "Released"


class WriteTrouble(Enum):
    """Why nothing is decided about a job: what is decided could not be written to its status."""

    REFUSED = "refused"  # the API server does not store it
    UNANSWERED = "unanswered"  # the API server does not answer
    OVERTAKEN = "overtaken"  # others change the job all the time
    SLOW = "slow"  # an earlier write, or several of its namespace, go on, or the API server is too busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks of one attempt go; `nodes[rank]` is a node name."""

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
    gpus: tuple[int, ...] = ()  # of each rank, the GPU of its node on which it has a seat; empty: GPUs of its own
    joinable: bool = False  # as `Start.joinable`
    answer: WishAnswer | None = None  # to the last wish of this attempt
    stop: StopOrder | None = None  # if set, the placement is no longer live, and its pods end after the notice


class Phase(Enum):
    """The phase of a job. `lifecycle.steps.NEXT` has the legal changes."""

    __hash__ = object.__hash__  # faster than the enum's own: needed whenever a job is read

    QUEUED = "Queued"  # waits for a placement; no pods
    LAUNCHED = "Launched"  # all pods of the attempt were created
    STARTING = "Starting"  # all pods are bound
    RUNNING = "Running"  # all main containers have started
    RESTARTING = "Restarting"  # the attempt is rolled back; its pods are being deleted
    SUSPENDED = "Suspended"  # by spec.suspend; its pods are deleted
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
    edited: bool = False  # queued, and the operator has not accepted this `generation` yet: it must not start
    unreadable: str = ""  # why its object cannot be read, in words: it must not start
    unwritable: WriteTrouble | None = None  # its status cannot be written now: nothing is decided about it
    replicas: int
    request: Resources  # of one rank
    cpus_per_replica: int = 0  # whole cores proposed for the main container of each rank
    constraints: NodeConstraints = field(default_factory=NodeConstraints)
    priority: int = 0
    queued_s: float = 0.0  # its place in the queue
    waiting_s: float = 0.0  # since when it waits, if that is later: an attempt ended, or an edit enlarged it
    not_before_s: float = 0.0  # back-off: no start before this time
    avoid: frozenset[str] = frozenset()  # names of nodes that this job avoids for a while
    within: str | None = None  # topology level; one domain of it must hold all ranks
    prefers: tuple[LocalityStep, ...] = ()  # in this order; empty: as the installation says
    quota: Mapping[str, int] = field(default_factory=dict)  # use of one rank by ResourceQuota key, in milli-units
    scopes: PodScopes | None = None  # what scopes of quotas ask of a rank; None: unknown, and no such quota counts it
    placement: Placement | None = None
    deadline_shift_s: float = 0.0  # by how much the placement's deadline counts later than it says: clocks may differ
    bound: frozenset[int] = frozenset()  # ranks of the current attempt whose pod has a node
    unbound: Mapping[int, str] = field(default_factory=dict)  # rank -> pinned node of a live pod that is not bound yet
    gone: frozenset[int] = frozenset()  # ranks of a started attempt whose pod has ended: they hold nothing
    crowded: frozenset[int] = frozenset()  # ranks on seats that stand still: their GPU has no room for them any more
    awaited: bool = False  # the pod that has such a GPU whole cannot go on before they have gone: they end at once
    ending: tuple[str, ...] = ()  # nodes where pods of it still run that are no ranks of its placement, once per pod
    leftovers: bool = False  # queued, and pods of its attempt exist that are no ranks of its placement
    wish: Wish | None = None  # the last one of its attempt, answered or not
    tunable: bool = False  # a GPU job whose cores are Coda's to choose, and can be changed as it runs
    searching: bool = False  # its cores are being looked for: a neighbour on its GPUs would spoil what is measured
    held_cores: int = 0  # per rank, that its search may go back to: what it tries without stays withheld for it
    resized: int = 0  # sequence of the last wish whose resize has ended, with success or not
    pod_cpu_m: Mapping[int, int] = field(default_factory=dict)  # bound rank -> cores its pod has, if not `request`
    asked_anyway: int = 0  # whole cores per rank that a pod of it asks for, however few its main container has
    user: str = ""
    virtual_cluster: str = ""
    returned: bool = False  # it was stopped for another job: it waits at the head of its array
    reclaimed: int = 0  # how often it gave borrowed cores back, each time soon after it had started; a CPU job's
    served_s: float = 0.0  # total run time up to `as_of_s`; a running job has run longer by now
    remaining_s: float | None = None  # run time left at `as_of_s`, if known; a running job has less left by now
    as_of_s: float = 0.0  # the time at which the two above were true
    category: str = ""  # what it trains, if that is said: CV, NLP or Speech
    may_borrow: bool = True  # a CPU job may take cores that it must give back: it is made again when it is stopped
    resumable: bool = False  # it says that it goes on where it was when it is stopped
    saved_s: float = 0.0  # when it was last known to have saved, in this attempt; inf: it loses nothing
    lost_s: float = 0.0  # seconds of work that its last stop for another job threw away
    stop_notice_s: float = 0.0  # how long before its end it wants to be told of a stop; 0: not at all
    run_limit_s: float | None = None  # it is ended when it has run for so long, over all attempts
    run_from_s: float = 0.0  # since when its attempt counts for that; 0: from its placement
    sharing: SharingWish = SharingWish.GUARANTEED
    keeps_to_itself: bool = False  # nobody joins it on GPUs of its own, whatever its class
    brings_volumes: bool = False  # a volume is made with each pod, before kube-scheduler binds that
    late_binds: int = 0  # attempts in a row, up to now, of which the last was not all bound in time
    gpu_bytes: int = 0  # the most memory that a rank needs of one GPU; 0: not known

    @property
    def resumed_s(self) -> float:
        """How long it had run when its last attempt began, as far as that went on from there."""
        return self.served_s if self.resumable else 0.0

    @property
    def run_left_s(self) -> float | None:
        """How long an attempt of it runs at most, the present one from its beginning; None: for ever."""
        return None if self.run_limit_s is None else max(0.0, self.run_limit_s - self.served_s)

    @property
    def namespace(self) -> str:
        """The part of the id before the slash."""
        return self.id.split("/", 1)[0]
