"""What becomes of plans that were written but are not fully in force: released, adopted, left to settle, or dropped.

Asked after every commit and by every new leader. What must not live here: choices of nodes, and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from coda.errors import InvalidInput
from coda.model.capacity import after_stops, free_by_node
from coda.model.decision import Start
from coda.model.job import Job, JobId, Phase, Placement, PlacementState
from coda.model.live_placement import is_waiting, live_placement, open_wish, withheld_ranks
from coda.model.resources import Resources
from coda.model.world import Node, World
from coda.nodes.eligibility import exclusion, is_blocked
from coda.policy.config import PolicyConfig


class PlacementAction(Enum):
    """What a plan gets next."""

    RELEASE = "release"  # it fits beside everything in flight: pods may be created
    ADOPT = "adopt"  # another leader's, it still fits: it becomes this epoch's
    SETTLE = "settle"  # it fits unless foreign pods in flight land on its nodes, or once stopped jobs are gone: wait
    DROP = "drop"  # it no longer stands


class DropCause(Enum):
    """Why a plan is dropped, apart from a `DefectKind` of its nodes."""

    LATE = "its bind deadline passed before it was released"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReview:
    """The fate of one job's plan; `why` only for a dropped one. `awaits_stops`: stopped jobs still have its room."""

    job: Job
    fate: PlacementAction
    why: PlacementDefect | DropCause | None = None
    awaits_stops: bool = False

    @property
    def awaits_in_flight(self) -> bool:
        """True if only foreign pods in flight are in the way. This wait has a limit: see `is_given_up`."""
        return self.fate is PlacementAction.SETTLE and not self.awaits_stops


def awaits_decision(job: Job, *, epoch: int) -> bool:
    """True for a job that a round of decisions says anything about: it waits, its plan is not settled yet, or it runs
    and wants other cores.

    Where it is true of no job, `decide` answers nothing and `rule_on_plans` rules on nothing, whatever the rest of the
    world is like."""
    return is_waiting(job) or _open_plan(job, epoch) is not None or open_wish(job) is not None


def review_placements(world: World, *, epoch: int, now_s: float) -> tuple[PlacementReview, ...]:
    """The fate of each live, not fully bound plan that is not released yet or is another leader's, oldest first.

    Plans that are over-committed together do not all die: per node only the last one is dropped (committed before
    released ones, then the younger), the others get no ruling until that is done. Released plans of this epoch are the
    operator's. Cost: O(nodes + jobs) when there is any such plan, else O(jobs)."""
    queued, launched = Phase.QUEUED, Phase.LAUNCHED
    planned = [job for job in world.jobs if job.placement and ((phase := job.phase) is queued or phase is launched)]
    open_plans = [(job, plan) for job in planned if (plan := _open_plan(job, epoch)) is not None]
    if not open_plans:
        return ()
    open_plans.sort(key=lambda entry: (entry[1].committed_s, entry[0].id))
    job_ids = [job.id for job, _ in open_plans]
    calm = placement_defects(replace(after_stops(world), in_flight={}), job_ids)
    still = placement_defects(replace(world, in_flight={}), job_ids) if world.leaving else calm
    busy = placement_defects(world, job_ids) if world.in_flight else still
    last_by_node = _last_by_node([(job, plan, calm[job.id]) for job, plan in open_plans])
    rulings: list[PlacementReview] = []
    for job, plan in open_plans:
        flaw = calm[job.id]
        if flaw is not None:
            if flaw.flaw is not DefectKind.NO_CAPACITY or last_by_node[flaw.name] == job.id:
                rulings.append(PlacementReview(job=job, fate=PlacementAction.DROP, why=flaw))
        elif plan.state is PlacementState.COMMITTED and plan.bind_deadline_s <= now_s:
            rulings.append(PlacementReview(job=job, fate=PlacementAction.DROP, why=DropCause.LATE))
        else:
            fate = _fate(plan, epoch, fits_beside_all=busy[job.id] is None)
            rulings.append(PlacementReview(job=job, fate=fate, awaits_stops=still[job.id] is not None))
    return tuple(rulings)


def _open_plan(job: Job, epoch: int) -> Placement | None:
    if job.placement is None or (job.phase is not Phase.QUEUED and job.phase is not Phase.LAUNCHED):
        return None
    plan = live_placement(job)
    if plan is None or len(job.bound) >= job.replicas:
        return None
    return plan if plan.state is PlacementState.COMMITTED or plan.epoch != epoch else None


def _fate(plan: Placement, epoch: int, *, fits_beside_all: bool) -> PlacementAction:
    if plan.state is PlacementState.COMMITTED and fits_beside_all:
        return PlacementAction.RELEASE
    return PlacementAction.ADOPT if plan.epoch != epoch else PlacementAction.SETTLE


def _last_by_node(judged: list[tuple[Job, Placement, PlacementDefect | None]]) -> dict[str, str]:
    last_by_node: dict[str, tuple[tuple[bool, float, str], str]] = {}
    for job, plan, flaw in judged:
        if flaw is not None and flaw.flaw is DefectKind.NO_CAPACITY:
            rank = (plan.state is PlacementState.COMMITTED, plan.committed_s, job.id)
            last_by_node[flaw.name] = max(last_by_node.get(flaw.name, (rank, job.id)), (rank, job.id))
    return {name: job_id for name, (_, job_id) in last_by_node.items()}


def placement_from_start(start: Start, *, plan_id: str, epoch: int, now_s: float, config: PolicyConfig) -> Placement:
    """The durable plan that commits `start` at `now_s`."""
    return Placement(
        attempt=start.attempt,
        plan_id=plan_id,
        epoch=epoch,
        generation=start.generation,
        state=PlacementState.COMMITTED,
        nodes=start.nodes,
        cpus_per_replica=start.cpus_per_replica,
        committed_s=now_s,
        bind_deadline_s=now_s + config.bind_deadline_s,
        borrows=start.borrows,
    )


def released_placement(placement: Placement, *, epoch: int, now_s: float, config: PolicyConfig) -> Placement:
    """The placement as it is released at `now_s`. At least half of the bind deadline is left for its pods to bind:
    stopped jobs may have had its capacity until long after the commit."""
    deadline_s = max(placement.bind_deadline_s, now_s + config.bind_deadline_s / 2)
    return replace(placement, epoch=epoch, state=PlacementState.RELEASED, bind_deadline_s=deadline_s)


def adopted_placement(placement: Placement, *, epoch: int) -> Placement:
    """The placement of an earlier leader as this epoch's, unchanged otherwise."""
    return replace(placement, epoch=epoch)


def is_given_up(review: PlacementReview, *, waited_s: float, limit_s: float) -> bool:
    """True if the placement has waited for pods in flight for `limit_s` or longer, and must be dropped.

    `decide` may then find other nodes for the job; a foreign pod can stay in flight for minutes."""
    return review.awaits_in_flight and waited_s >= limit_s


class DefectKind(Enum):
    """Why a plan no longer stands; the value ends the sentence "plan dropped: <node> ..."."""

    NO_LIVE_PLAN = "has no live plan"
    NODE_GONE = "is gone"
    NODE_BLOCKED = "is cordoned, not ready or under pressure"
    NODE_REFUSES = "no longer matches the job's selector, affinity or tolerations"
    NO_CAPACITY = "no longer has the room"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDefect:
    """The first thing wrong with a plan: the flaw, and the node (or, without a live plan, the job) that has it."""

    flaw: DefectKind
    name: str

    def __str__(self) -> str:
        return f"{self.name} {self.flaw.value}"


def placement_defects(world: World, job_ids: Iterable[JobId]) -> dict[JobId, PlacementDefect | None]:
    """Whether each of these jobs' plans still stands: None, or what is wrong. Raises InvalidInput for an unknown job.

    Judged are the nodes of ranks without a bound pod: there, still willing, and the room that all plans together
    withhold really left. Amounts the job does not ask for may be over-committed. `world.in_flight` counts in full: to
    judge by foreign pods admitted before the commit only, pass a world with just those. O(nodes + jobs) for all."""
    job_by_id = {job.id: job for job in world.jobs}
    node_by_name = {node.name: node for node in world.nodes}
    free = free_by_node(world)
    answers: dict[JobId, PlacementDefect | None] = {}
    for job_id in job_ids:
        if job_id not in job_by_id:
            raise InvalidInput(f"job {job_id} is not in this world")
        answers[job_id] = _misfit(job_by_id[job_id], node_by_name, free)
    return answers


def still_fits(world: World, job_id: JobId) -> bool:
    """True when the job has a live plan and every rank of it that is not bound can still go where it says."""
    return placement_defects(world, [job_id])[job_id] is None


def _misfit(job: Job, node_by_name: Mapping[str, Node], free: Mapping[str, Resources]) -> PlacementDefect | None:
    if live_placement(job) is None:
        return PlacementDefect(flaw=DefectKind.NO_LIVE_PLAN, name=job.id)
    for name in sorted({node for _, node in withheld_ranks(job)}):
        flaw = _flaw(job, node_by_name.get(name), free)
        if flaw is not None:
            return PlacementDefect(flaw=flaw, name=name)
    return None


def _flaw(job: Job, node: Node | None, free: Mapping[str, Resources]) -> DefectKind | None:
    if node is None:
        return DefectKind.NODE_GONE
    if is_blocked(job.constraints, node):
        return DefectKind.NODE_BLOCKED
    if exclusion(job.constraints, node) is not None:
        return DefectKind.NODE_REFUSES
    return None if _is_covered(job.request, free[node.name]) else DefectKind.NO_CAPACITY


def _is_covered(request: Resources, rest: Resources) -> bool:
    """True when nothing that the request asks for is over-committed: `rest` already has the request taken off."""
    return request.fits_in(rest + request)
