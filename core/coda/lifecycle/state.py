"""The values of the life cycle: what is observed, what is remembered, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from coda.allocator.memory_growth import KilledRank, RankMemory
from coda.allocator.resize import RankSize, Resize
from coda.correlation import Alike
from coda.diagnosis import Diagnosis
from coda.history.time_spent import TimeSpent
from coda.model.job import FINISHED, Phase, Placement, PlacementState, StopCause
from coda.model.trial_run import TrialRun, TrialTerms, is_tried
from coda.progress.stall import Reached, Stall

TEMPLATE_REFUSED: Final = "TemplateRefused"
UNDER_WAY: Final = frozenset({Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})  # of an attempt whose pods all exist


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleConfig:
    """Times of the life cycle, in seconds; the deadlines of a job are in its spec."""

    node_loss_s: float = 60.0  # a node that is not Ready for this long is lost (design: 60 s)
    unschedulable_s: float = 5.0  # a pinned pod refused for this long never fits: its capacity is taken
    failure_backoff_s: float = 10.0  # after the job's own first failure; doubles (Kubernetes Jobs: 10 s)
    failure_backoff_limit_s: float = 360.0  # Kubernetes Jobs: 6 min
    disruption_backoff_s: float = 1.0  # after an attempt was ended from outside; doubles
    disruption_backoff_limit_s: float = 3600.0  # of attempts in a row that were ended from outside (our choice)
    calm_s: float = 600.0  # an attempt that ran for this long ends such a row
    avoid_node_s: float = 120.0  # how long a job avoids a node on which it failed, after its back-off
    brake_share: float = 0.3  # node loss is suspended if this share of the nodes stops being Ready together ...
    brake_least_nodes: int = 3  # ... and at least so many ...
    brake_window_s: float = 300.0  # ... within this time
    brake_limit_s: float = 1800.0  # but no longer, while most nodes are Ready (our choice)
    brake_longest_s: float = 4 * 3600.0  # and no longer than this while any node is Ready (our choice)
    brake_calm_s: float = 600.0  # brakes with less than this between them count as one (our choice)
    news_s: float = 3.0  # a kubelet tells so much later than the peers fail that it ended a rank (our choice)
    order_s: float = 5.0  # news of a node and of its pods come in any order, this far apart at most (our choice)
    node_back_s: float = 60.0  # a kubelet has told what ended with its node this long after the return (our choice)
    passing_s: float = 1.0  # STARTING is not written if RUNNING follows within it (our choice: half the 2 s promised)
    finished_ttl_s: float = 7 * 86400.0  # how long a finished job is kept if it does not say; 0: for ever
    edit_s: float = 30.0  # a job with a refused template is not written for so long: its user edits it (our choice)
    wind_down_s: float = 5.0  # a kubelet takes so much longer than the grace period to end sidecars (our choice)
    stuck_s: float = 15.0  # a pod that should have ended this long ago is named in the status (our choice)
    overdue_s: float = 3600.0  # no record of a finished job waits for a pod longer past its grace period (our choice)


class PodState(Enum):
    """The state of a rank's main container, or FAILED if the pod failed without it."""

    WAITING = "waiting"  # not started
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPod:
    """A pod of the gang as its life cycle sees it."""

    name: str
    uid: str
    attempt: int
    rank: int
    plan_id: str = ""  # the placement that it was created for
    node: str | None = None
    pinned_to: str | None = None  # the only node that it may be bound to
    owned: bool = True  # the job is its owner; if not, it was forged or orphaned
    named: bool = True  # it has the name of its attempt and rank
    held: bool = False  # our finalizer keeps it, so that its end is seen whatever becomes of it
    state: PodState = PodState.WAITING
    ended: bool = False  # the whole pod, with its sidecars
    winds_down_s: float = 0.0  # its kubelet ends within it what runs beside its ended main container; 0: nobody does
    terminating: bool = False
    gone_by_s: float = 0.0  # the grace period of a terminating pod ends then
    shorten_to_s: int = 0  # what its spec gives it to end, where whoever deleted it gave it longer; 0: nobody did
    finalizers: tuple[str, ...] = ()  # what keeps a terminating pod besides its kubelet and us
    unschedulable_since_s: float | None = None
    has_claims: bool = False  # it mounts volumes that must be bound before it is
    awaits_volume: bool = False  # it has no node until its volumes are made or bound: nobody refused it
    bound_s: float | None = None  # since when it has its node, as we saw or its pod tells; 0: longer than is known
    creating_since_s: float | None = None  # since when its kubelet creates its container, by our own clock
    preparing: str = ""  # the container that runs before its main one may start
    preparing_since_s: float | None = None  # by our own clock
    started_s: float | None = None  # since when it was seen to run, by our own clock; 0: longer than we look
    ended_s: float | None = None  # the same of its main container's end
    over_s: float = 0.0  # when that end was, where it was seen long after; 0: it was seen, or the pod does not say
    begun_s: float = 0.0  # when it had started, where `over_s` says the end
    exit_code: int | None = None  # of the main container, after it ended
    failed_container: str = ""  # which other container failed before the main one started
    disrupted: bool = False  # ended from outside: evicted, preempted, refused by its kubelet
    overuse: str = ""  # the resource of its node that its main container used up; it was evicted for that
    bad_image: tuple[str, str] | None = None  # the container, and its image, whose invalid name keeps it from starting
    reason: str = ""  # why it failed or cannot start
    message: str = ""
    size: RankSize | None = None  # cores of its main container, while that runs
    told: str = ""  # the placement whose end was announced to it
    boot: str = ""  # its node's boot id when it was created; "": not known


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Why the last attempt that failed did: the words of the diagnosis, as the status has them.

    `decision`: one sentence, what followed. `repeats`: attempts in a row with this reason, this one included.
    `signature`: what failures with the same cause share. `alike`: how many other jobs of the user failed so within a
    day, and the newest of them. `cut_short`: it was not tried again because they had stopped."""

    attempt: int
    reason: str
    sub_reason: str = ""
    category: str = ""
    explicit: bool = False
    rank: int | None = None
    node: str = ""
    evidence: str = ""
    advice: str = ""
    retry: str = ""
    decision: str = ""
    repeats: int = 1
    unread: str = ""  # which logs could not be read, and why
    time_s: float = 0.0
    signature: str = ""
    alike: int = 0
    alike_names: tuple[str, ...] = ()
    cut_short: bool = False
    xid: int | None = None  # that the node's agent saw on the rank's GPU


class StopAnswer(Enum):
    """How an attempt that was stopped for another job came to its end."""

    UNASKED = "Unasked"  # it asked for no notice, or did not run yet
    SAVED = "Saved"  # it said that it has saved
    EXITED = "Exited"  # it ended by itself
    LATE = "Late"  # its notice passed without an answer
    CUT_SHORT = "CutShort"  # a pod or node of it went away within the notice


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """The last time that the job was stopped for another. `lost_s`: work since its last known save."""

    attempt: int
    cause: StopCause
    by: str
    answer: StopAnswer
    lost_s: float = 0.0  # whole seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The operator's part of the status: everything it must remember. Times are seconds since 1970, 0 for none."""

    phase: Phase | None = None
    attempt: int = 1
    failures: int = 0
    disruptions: int = 0
    in_a_row: int = 0  # of these the last ones, since an attempt ran for long
    generation: int = 0  # of the spec that was last accepted or read
    queued_s: float = 0.0
    waiting_s: float = 0.0  # since when it waits for a placement: the last attempt has ended, or an edit enlarged it
    returned: bool = False  # it was stopped for another job, and has not started again
    not_before_s: float = 0.0
    served_s: float = 0.0  # how long its earlier attempts ran in all, launch to end, in whole seconds
    launch_s: float = 0.0
    start_s: float = 0.0
    completion_s: float = 0.0
    avoid: Mapping[str, float] = field(default_factory=dict)  # node name -> until
    reason: str = ""
    message: str = ""
    resize: Resize | None = None  # the state of the last grant of cores in this attempt
    succeeded: frozenset[int] = frozenset()  # ranks of this attempt that succeeded and need no pod any more
    failure: FailureRecord | None = None  # of the last attempt that failed by the job's own fault
    stall: Stall | None = None  # its failures that were not counted at once; None: there was none
    memory: RankMemory | None = None  # what ranks ask for since one was killed for memory; None: as the template says
    cores_multiple: int = 1  # cores that Coda chooses are multiples of it: a kubelet refused others
    stop_due_s: float = 0.0  # its stop is announced, and carried out then, by the operator's own stamp
    stopped: StopRecord | None = None  # the last stop for another job
    lost_s: float = 0.0  # work that all such stops threw away, in whole seconds
    lost_gpu_s: float = 0.0  # the same in GPU-seconds, at the size that the job had at each stop
    spent: TimeSpent | None = None  # how its time went, up to the last written change; None: it has no account yet
    trial: TrialRun | None = None  # its trial, before any gang

    @property
    def is_tried(self) -> bool:
        """True if the present attempt is the trial."""
        return is_tried(self.trial, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The part of the spec that concerns the life of the job. Durations in seconds."""

    replicas: int
    gpus_per_replica: int = 0
    retries: int = 3
    rank_zero_decides: bool = False  # success policy RankZero; else all ranks must succeed
    active_deadline_s: float | None = None  # how long it may run, over all attempts
    start_deadline_s: float = 1800.0
    ttl_s: float | None = None
    is_applied: bool = False  # a tool would make it again if it were deleted: from Git, or for a Helm release
    suspend: bool = False
    grow_memory_to_bytes: int = 0  # what a rank killed for memory may ask for in later attempts; 0: it never grows
    finds_cores: bool = False  # `spec.cpusPerReplica: auto`
    waits_for_nodes: bool = False  # `spec.onNodeLoss: Wait`: nothing is restarted while an old rank may still run
    resumable: bool = False  # it goes on from what it has saved
    images: frozenset[tuple[str, str]] = frozenset()  # containers of the template, each with its image
    trial: TrialTerms = field(default_factory=TrialTerms)  # how long its trial may take, if it has one


class Untuned(Enum):
    """Why nobody looks for the cores of a job: a reason in its status."""

    NO_AGENT = "NoAgent"  # the node of rank 0 has never had one
    OFF = "TuningOff"  # its agent is set not to
    SILENT = "AgentSilent"  # its agent once was there, and does not
    UNKNOWN = "Unknown"  # which of these is not known yet
    SEARCHED = "Searched"  # none of these now: its agent looks for them, and may go away before it has found them


UNTUNED_REASONS: Final = frozenset(why.value for why in (Untuned.NO_AGENT, Untuned.OFF, Untuned.SILENT))
"""The reasons of running jobs whose cores nobody looks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The input of `next_step`. `epoch`: of the planner's Lease; None: it was not read, and no pod is created.

    `terms` are those of the present attempt: a trial has one rank, and no deadlines of its own."""

    terms: Terms
    generation: int
    progress: Progress
    held: bool = False  # our finalizer keeps the job
    recorded: bool = True  # the record of its end is stored, or nobody keeps any
    deleting: bool = False
    orphaning: bool = False  # it is deleted, but its pods are to stay
    placement: Placement | None = None
    epoch: int | None = None
    ended_s: float = 0.0  # when its attempt ended, while its pods are still to go; 0: it has not, or that is not known
    pods: tuple[RankPod, ...] = ()
    vanished: frozenset[int] = frozenset()  # ranks of this attempt whose pod was seen and is gone
    room: int = 4096  # how many pods may be created now
    seen_succeeded: frozenset[int] = frozenset()  # those that had succeeded before
    unready_since_s: Mapping[str, float] = field(default_factory=dict)  # node -> since when it is gone or not Ready
    given_up: frozenset[str] = frozenset()  # nodes that are deleted or tainted out-of-service: nothing runs there
    cordoned: Mapping[str, float] = field(default_factory=dict)  # nodes whose GPUs are suspect -> until
    ended_cordons: Mapping[str, frozenset[float]] = field(default_factory=dict)  # by node: until when they had lasted
    braked: bool = False  # many nodes stopped being Ready together: none counts as lost
    outages: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)  # node -> its last: since, until
    boots: Mapping[str, str] = field(default_factory=dict)  # node -> its boot id now, where that is known
    diagnosis: Diagnosis | None = None  # why the attempt failed, once its logs were read
    unread: str = ""  # which of them could not be read, and why
    signature: str = ""  # of the diagnosis
    killed: KilledRank | None = None  # the first rank of this attempt that its kubelet killed for memory
    alike: Alike = field(default_factory=Alike)  # the user's other jobs with this signature
    converged: str = ""  # why it is to end by its own rule: it no longer learns; "": it is not
    answered: str = ""  # the placement whose announced end it answered: it has saved
    saved_s: float = 0.0  # when it was last seen to have saved, in this attempt; 0: never
    one_node_claims: tuple[str, ...] = ()  # most storage mounts them on one node; a rank on another is not created
    is_done: bool = False  # by its own report nothing is left to do
    wants_trial: bool = False  # it, or its tenant, asks for a trial
    has_stepped: bool = False  # it has reported a step in this attempt
    reached: Reached = field(default_factory=Reached)  # how far this attempt came, by its reports
    untuned: Untuned | None = None  # its cores are to be found in this attempt: why nobody begins, or goes on
    found_s: float = -inf  # when this operator found it, with times that others may have written


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do: accept, create or resize; then write `progress` if it changed, announce, delete, finalize, remove."""

    progress: Progress
    accept: bool = False  # ask the API server for the request per rank; `progress` is valid only if it agrees
    create: tuple[int, ...] = ()  # ranks whose pod is missing
    resize: tuple[tuple[RankSize, int], ...] = ()  # ranks to give other cores (in millicores)
    announce: tuple[RankPod, ...] = ()  # ranks to tell that they are to save and end
    delete: tuple[RankPod, ...] = ()
    at_s: float = 0.0  # when the attempt had begun to run, or ended, if `progress` says that long after; 0: now
    record: bool = False  # store the record of its end: until then the job is kept
    over: bool = False  # it is deleted and nothing of it may still run: its account ends, before it has its record
    let_go: tuple[RankPod, ...] = ()  # pods that are held and needed no longer; not those of `delete`
    disconnect: bool = False  # delete its Service: none of its ranks may still run
    finalize: bool = False  # let the API server delete the job: nothing of it is left
    remove: bool = False  # delete the job: its time to live is over
    clear: bool = False  # delete the pods that it has left, also those that nobody remembers; it stays
    wake_s: float | None = None  # decide again then, if nothing changes before


def of_attempt(now: Situation) -> tuple[RankPod, ...]:
    """Return the pods of the current attempt: one for each rank at most, and none that somebody forged."""
    return tuple(pod for pod in now.pods if pod.attempt == now.progress.attempt and is_rank(pod, now))


def is_rank(pod: RankPod, now: Situation) -> bool:
    """True for a pod that the operator made for a rank. Labels alone prove nothing: anybody may write them."""
    return pod.owned and pod.named and 0 <= pod.rank < now.terms.replicas


def released_placement(now: Situation) -> Placement | None:
    """Return the placement for which pods may be created, or None: released, complete, of this attempt and spec."""
    placement, wanted = now.placement, now.progress
    if placement is None or (placement.attempt, placement.generation) != (wanted.attempt, wanted.generation):
        return None
    is_whole = placement.state is PlacementState.RELEASED and len(placement.nodes) == now.terms.replicas
    return placement if is_whole else None


def kept_s(now: Situation, config: LifecycleConfig) -> float | None:
    """Return how long the finished job is kept, or of one that stays its pods; None: for ever."""
    return now.terms.ttl_s if now.terms.ttl_s is not None else config.finished_ttl_s or None


def stays(now: Situation) -> bool:
    """True if only the pods of the finished job go with time: deleted, it would be made again, and run again."""
    return now.terms.is_applied and now.terms.ttl_s is None


def lacks_its_record(now: Situation) -> bool:
    """True for a held job that was accepted, while history has no record of its end: it waits for that.

    One whose template was refused leaves none: it may still be edited and run."""
    accepted = now.progress.phase is not None and now.progress.reason != TEMPLATE_REFUSED
    return now.held and not now.recorded and accepted


def is_away(node: str, now: Situation, now_s: float, config: LifecycleConfig) -> bool:
    """True if the node has not been Ready for `node_loss_s`."""
    since_s = now.unready_since_s.get(node)
    return since_s is not None and now_s - since_s >= config.node_loss_s


def is_lost(node: str, now: Situation, now_s: float, config: LifecycleConfig) -> bool:
    """True if the node is away, unless the brake or the job's own wish forbids to call it lost."""
    is_kept = now.braked or (now.terms.waits_for_nodes and not now.deleting)
    return is_away(node, now, now_s, config) and (node in now.given_up or not is_kept)


def missing_ranks(now: Situation) -> tuple[int, ...]:
    """Return the ranks of the attempt that need a pod and have none, lowest first."""
    present = {pod.rank for pod in of_attempt(now)} | now.progress.succeeded
    return tuple(rank for rank in range(now.terms.replicas) if rank not in present)


def pods_left(now: Situation, now_s: float, config: LifecycleConfig) -> tuple[RankPod, ...]:
    """Return the pods that must end first: all but those being deleted on a lost node (no kubelet can confirm them)."""
    return tuple(
        pod for pod in now.pods if not (pod.terminating and pod.node and is_lost(pod.node, now, now_s, config))
    )


def is_live(pod: RankPod, now: Situation, now_s: float, config: LifecycleConfig) -> bool:
    """True if the pod may still hold GPUs that its job is charged for, and that the record of its end waits for.

    On a node that is away it is not, whoever waits for that. Of a finished job neither is what should be long gone."""
    if pod.ended or (pod.node and is_away(pod.node, now, now_s, config)):
        return False
    if not pod.terminating or now.progress.phase not in FINISHED:
        return True
    return bool(pod.node) and now_s < pod.gone_by_s + config.overdue_s  # nobody binds a pod that is being deleted


def live_ranks(now: Situation, now_s: float, config: LifecycleConfig) -> int:
    """Return how many pods of the job have a node and may still run, of any attempt."""
    return sum(1 for pod in now.pods if pod.owned and pod.node and is_live(pod, now, now_s, config))


def is_alone(now: Situation, now_s: float, config: LifecycleConfig) -> bool:
    """True if no pod of another attempt may still run."""
    return all(pod.ended or pod.attempt == now.progress.attempt for pod in pods_left(now, now_s, config))


def deletable(pods: tuple[RankPod, ...]) -> tuple[RankPod, ...]:
    """Return the pods that are not being deleted yet, or that somebody gave longer to end than their spec does.

    Else whoever may delete a pod could keep its capacity for years."""
    return tuple(pod for pod in pods if not pod.terminating or pod.shorten_to_s)


def winds_down_until_s(pod: RankPod, now_s: float, config: LifecycleConfig) -> float:
    """Return until when a pod of a finished job stays although it has not ended: its log goes with it. 0: not at all.

    Its kubelet ends its native sidecars by itself. Until then it holds its GPUs: it has no longer."""
    if pod.ended or pod.terminating or pod.ended_s is None or not pod.winds_down_s:
        return 0.0
    return min(pod.ended_s, now_s) + pod.winds_down_s + config.wind_down_s


def lost_ranks(now: Situation) -> frozenset[int]:
    """Return the ranks of the attempt that lost their pod before it succeeded; a forged rank is none of the job's."""
    return now.vanished.intersection(range(now.terms.replicas)) - now.progress.succeeded
