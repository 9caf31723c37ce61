"""What becomes of written placements that are not fully in force: they are released, adopted, dropped, or they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Final

from coda.errors import InvalidInput
from coda.model.capacity import after_stops, free_by_node
from coda.model.decision import Start
from coda.model.job import Job, JobId, Phase, Placement, PlacementState
from coda.model.live_placement import is_waiting, live_placement, withheld_ranks
from coda.model.resources import Resources
from coda.model.seats import wants_other_shares
from coda.model.world import Node, World
from coda.nodes.eligibility import exclusion, is_blocked
from coda.placements.stop_orders import longest_notice_s
from coda.policy.config import PolicyConfig

AT_ONCE_NODES = 64
"""Our choice: looking at so many takes below a millisecond. Larger gangs are committed first, and then reviewed."""


class PlacementAction(Enum):
    """What is done next about a placement."""

    RELEASE = "release"  # it fits beside everything in flight: pods may be created
    ADOPT = "adopt"  # it is another leader's and still fits: it becomes this epoch's
    WAIT = "settle"  # it fits unless foreign pods in flight land on its nodes, or once stopped jobs are gone
    DROP = "drop"  # it no longer fits, or is too late
    VOID = "void"  # it is too late and cannot be removed: it counts no more


class DropCause(Enum):
    """Why a placement is dropped, besides a `DefectKind` of its nodes."""

    LATE = "its bind deadline passed before it was released"
    UNUSED = "long after its bind deadline not all its pods are bound, and nobody has ended the attempt"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReview:
    """The action for one job's placement."""

    job: Job
    action: PlacementAction
    defect: PlacementDefect | DropCause | None = None  # of a dropped one
    awaits_stops: bool = False  # stopped jobs still have its capacity
    late_s: float = inf  # it is dropped then, if it is not released before

    @property
    def awaits_in_flight(self) -> bool:
        """True if only foreign pods in flight are in the way. This wait has a limit: see `is_given_up`."""
        return self.action is PlacementAction.WAIT and not self.awaits_stops


UNUSED_S: Final = 60.0
"""This long after its bind deadline, a released placement whose pods are not all bound is not left to the operator any
more. Our choice: an operator that lives ends the attempt within seconds."""


VOLUME_S: Final = 600.0
"""The bind deadline is so much later for pods that bring volumes. Source: kube-scheduler waits ten minutes for volumes
before it tries again (`bindTimeoutSeconds`)."""
LEAST_VOLUME_S: Final = 60.0
"""The least that is left of it. Our choice: most disks are made within it."""
FULL_AGAIN: Final = 8
"""Of so many attempts in a row that are not bound in time, one has all of it. Our choice: then back-offs are longer."""


def awaits_decision(job: Job, *, epoch: int, now_s: float = 0.0) -> bool:
    """True if a cycle can decide something about the job: it waits, its placement is to be reviewed, or it wants other
    cores or other GPUs.

    If it is true for no job, `decide` and `review_placements` return nothing at that time, in any world."""
    if is_waiting(job) or _open_placement(job, epoch) is not None or wants_other_shares(job):
        return True
    return job.placement is not None and _overdue(job, now_s) is not None


def review_placements(world: World, *, epoch: int, now_s: float) -> tuple[PlacementReview, ...]:
    """Review each live placement that is not fully bound and is not released yet or is another leader's, oldest first.

    If placements together need more than a node has, only the last one is dropped on each node: committed before
    released, then the younger. The others get no review until that is done. A placement that cannot be written keeps
    its capacity until its deadline, and nobody waits for it to be dropped. Released placements of this epoch are the
    operator's, until long after their deadline. One that waits for stopped jobs has more time, by their notice, and is
    released once they are gone: dropped then, it would compete with them for what it was waiting for.
    Cost: O(nodes + jobs) if there is such a placement, else O(jobs)."""
    queued, launched = Phase.QUEUED, Phase.LAUNCHED
    placed = [job for job in world.jobs if job.placement and ((phase := job.phase) is queued or phase is launched)]
    reviews: list[PlacementReview] = []
    found: list[tuple[Job, Placement]] = []
    for job in placed:
        if (overdue := _overdue(job, now_s)) is not None:
            reviews.append(overdue)
        elif not job.unwritable and (placement := _open_placement(job, epoch)) is not None:
            found.append((job, placement))
    if not found:
        return tuple(reviews)
    found.sort(key=lambda entry: (entry[1].committed_s, entry[0].id))
    job_ids = [job.id for job, _ in found]
    calm = placement_defects(replace(after_stops(world), in_flight={}), job_ids)
    still = placement_defects(replace(world, in_flight={}), job_ids) if world.leaving else calm
    busy = placement_defects(world, job_ids) if world.in_flight else still
    last_by_node = _last_by_node([(job, placement, calm[job.id]) for job, placement in found])
    notice_s = longest_notice_s(world.jobs) if world.leaving else 0.0
    for job, placement in found:
        defect, awaits_stops = calm[job.id], still[job.id] is not None
        late_s = _deadline_s(job, placement) + (notice_s if awaits_stops else 0.0)
        if defect is not None:
            if defect.kind is not DefectKind.NO_CAPACITY or last_by_node[defect.name] == job.id:
                reviews.append(PlacementReview(job=job, action=PlacementAction.DROP, defect=defect))
            continue
        action = _action(placement, epoch, fits_beside_all=busy[job.id] is None)
        has_come_free = action is PlacementAction.RELEASE and placement.epoch == epoch  # what was waited for
        if placement.state is PlacementState.COMMITTED and late_s <= now_s and not has_come_free:
            reviews.append(PlacementReview(job=job, action=PlacementAction.DROP, defect=DropCause.LATE))
        else:
            reviews.append(PlacementReview(job=job, action=action, awaits_stops=awaits_stops, late_s=late_s))
    return tuple(reviews)


def _open_placement(job: Job, epoch: int) -> Placement | None:
    if job.placement is None or (job.phase is not Phase.QUEUED and job.phase is not Phase.LAUNCHED):
        return None
    placement = live_placement(job)
    if placement is None or len(job.bound) >= job.replicas:
        return None
    return placement if placement.state is PlacementState.COMMITTED or placement.epoch != epoch else None


def _deadline_s(job: Job, placement: Placement) -> float:
    return placement.bind_deadline_s + job.deadline_shift_s


def _overdue(job: Job, now_s: float) -> PlacementReview | None:
    """The review of a placement that nobody ends in time: its deadline is long over, or cannot be acted on."""
    placement = live_placement(job)
    is_open = job.phase is Phase.QUEUED or job.phase is Phase.LAUNCHED
    if placement is None or not is_open or len(job.bound) >= job.replicas:
        return None
    released = placement.state is PlacementState.RELEASED
    if _deadline_s(job, placement) + (UNUSED_S if released else 0.0) > now_s:
        return None
    if job.unwritable:
        return PlacementReview(job=job, action=PlacementAction.VOID)
    return PlacementReview(job=job, action=PlacementAction.DROP, defect=DropCause.UNUSED) if released else None


def _action(placement: Placement, epoch: int, *, fits_beside_all: bool) -> PlacementAction:
    if placement.state is PlacementState.COMMITTED and fits_beside_all:
        return PlacementAction.RELEASE
    return PlacementAction.ADOPT if placement.epoch != epoch else PlacementAction.WAIT


def _last_by_node(judged: list[tuple[Job, Placement, PlacementDefect | None]]) -> dict[str, str]:
    last_by_node: dict[str, tuple[tuple[bool, float, str], str]] = {}
    for job, placement, defect in judged:
        if defect is not None and defect.kind is DefectKind.NO_CAPACITY:
            rank = (placement.state is PlacementState.COMMITTED, placement.committed_s, job.id)
            last_by_node[defect.name] = max(last_by_node.get(defect.name, (rank, job.id)), (rank, job.id))
    return {name: job_id for name, (_, job_id) in last_by_node.items()}


def with_volume_time(config: PolicyConfig, job: Job) -> PolicyConfig:
    """Return the settings for placements of this job: it has longer to be bound if a volume is made with each pod.

    Half as much longer after each attempt in a row that was not bound in time: volumes that are never made are to hold
    few GPUs. One in `FULL_AGAIN` has all of it, for disks that take minutes, after whatever made none is back."""
    if not job.brings_volumes:
        return config
    more_s = max(LEAST_VOLUME_S, VOLUME_S / 2.0 ** (job.late_binds % FULL_AGAIN))
    return replace(config, bind_deadline_s=config.bind_deadline_s + more_s)


def placement_from_start(start: Start, *, plan_id: str, epoch: int, now_s: float, config: PolicyConfig) -> Placement:
    """Return the placement that commits `start` at `now_s`."""
    return Placement(
        attempt=start.attempt,
        plan_id=plan_id,
        epoch=epoch,
        generation=start.generation,
        state=PlacementState.COMMITTED,
        nodes=start.nodes,
        cpus_per_replica=start.cpus_per_replica,
        committed_s=now_s,
        bind_deadline_s=now_s + config.bind_time_s(len(start.nodes)),
        borrows=start.borrows,
        gpus=start.gpus,
        joinable=start.joinable,
    )


def released_placement(placement: Placement, *, epoch: int, now_s: float, config: PolicyConfig) -> Placement:
    """Return the placement as it is released at `now_s`.

    At least half of the bind deadline is left for its pods: stopped jobs may have had its capacity until long after the
    commit."""
    deadline_s = max(placement.bind_deadline_s, now_s + config.bind_time_s(len(placement.nodes)) / 2)
    return replace(placement, epoch=epoch, state=PlacementState.RELEASED, bind_deadline_s=deadline_s)


def fits_at_once(
    job: Job, nodes: Sequence[str], node_by_name: Mapping[str, Node], free_by_node: Mapping[str, Resources]
) -> bool:
    """True if a review would release this placement of a waiting job now: then its first write may release it.

    `free_by_node`: allocatable - used - withheld - in flight, for these nodes; an absent node is not known well enough.
    Never true for more than `AT_ONCE_NODES` nodes. O(nodes)."""
    ranks_by_node = Counter(nodes)
    if len(ranks_by_node) > AT_ONCE_NODES:
        return False
    for name, ranks in ranks_by_node.items():
        node, free = node_by_name.get(name), free_by_node.get(name)
        if node is None or free is None or not (job.request * ranks).fits_in(free):
            return False
        if is_blocked(job.constraints, node) or exclusion(job.constraints, node) is not None:
            return False
    return True


def adopted_placement(placement: Placement, *, epoch: int) -> Placement:
    """Return the placement of an earlier leader as this epoch's, unchanged otherwise."""
    return replace(placement, epoch=epoch)


def is_given_up(review: PlacementReview, *, waited_s: float, limit_s: float) -> bool:
    """True if the placement has waited for pods in flight for `limit_s` or longer, and must be dropped.

    `decide` may then find other nodes for the job; a foreign pod can stay in flight for minutes."""
    return review.awaits_in_flight and waited_s >= limit_s


class DefectKind(Enum):
    """Why a placement no longer fits. The value ends the sentence "plan dropped: <node> ..."."""

    NO_LIVE_PLAN = "has no live plan"
    NODE_GONE = "is gone"
    NODE_BLOCKED = "is cordoned, not ready, under pressure or being removed"
    NODE_REFUSES = "no longer matches the job's selector, affinity or tolerations"
    NO_CAPACITY = "no longer has the room"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDefect:
    """The first thing wrong with a placement."""

    kind: DefectKind
    name: str  # of the node; without a live placement, of the job

    def __str__(self) -> str:
        return f"{self.name} {self.kind.value}"


def placement_defects(world: World, job_ids: Iterable[JobId]) -> dict[JobId, PlacementDefect | None]:
    """Return what is wrong with each of these jobs' placements, or None. Raises InvalidInput for an unknown job.

    For each rank without a bound pod, checks that its node exists, still accepts the pod, and has the capacity that all
    placements withhold there. Amounts that the job does not ask for do not count. `world.in_flight` counts in full.
    O(nodes + jobs) for all."""
    job_by_id = {job.id: job for job in world.jobs}
    node_by_name = {node.name: node for node in world.nodes}
    free = free_by_node(world)
    answers: dict[JobId, PlacementDefect | None] = {}
    for job_id in job_ids:
        if job_id not in job_by_id:
            raise InvalidInput(f"job {job_id} is not in this world")
        answers[job_id] = _defect(job_by_id[job_id], node_by_name, free)
    return answers


def _defect(job: Job, node_by_name: Mapping[str, Node], free: Mapping[str, Resources]) -> PlacementDefect | None:
    if live_placement(job) is None:
        return PlacementDefect(kind=DefectKind.NO_LIVE_PLAN, name=job.id)
    for name in sorted({node for _, node in withheld_ranks(job)}):
        kind = _defect_on(node_by_name.get(name), job, free)
        if kind is not None:
            return PlacementDefect(kind=kind, name=name)
    return None


def _defect_on(node: Node | None, job: Job, free: Mapping[str, Resources]) -> DefectKind | None:
    if node is None:
        return DefectKind.NODE_GONE
    if is_blocked(job.constraints, node):
        return DefectKind.NODE_BLOCKED
    if exclusion(job.constraints, node) is not None:
        return DefectKind.NODE_REFUSES
    return None if _is_covered(job.request, free[node.name]) else DefectKind.NO_CAPACITY


def _is_covered(request: Resources, rest: Resources) -> bool:
    """True if `rest`, which is less the request already, is short of nothing that the request asks for."""
    return request.fits_in(rest + request)
