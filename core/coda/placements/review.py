"""What becomes of plans that were written but are not fully in force: released, adopted, left to settle, or dropped.

Asked after every commit and by every new leader. What must not live here: choices of nodes, and writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from coda.model.capacity import after_stops, is_waiting, live_placement, open_wish
from coda.model.job import Job, Phase, Placement, PlacementState, World
from coda.placements.rechecking import Flaw, Misfit, misfits


class Fate(Enum):
    """What a plan gets next."""

    RELEASE = "release"  # it fits beside everything in flight: pods may be created
    ADOPT = "adopt"  # another leader's, it still fits: it becomes this epoch's
    SETTLE = "settle"  # it fits unless foreign pods in flight land on its nodes, or once stopped jobs are gone: wait
    DROP = "drop"  # it no longer stands


class DropCause(Enum):
    """Why a plan is dropped, apart from a `Flaw` of its nodes."""

    LATE = "its bind deadline passed before it was released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The fate of one job's plan; `why` only for a dropped one. `awaits_stops`: stopped jobs still have its room."""

    job: Job
    fate: Fate
    why: Misfit | DropCause | None = None
    awaits_stops: bool = False


def awaits_decision(job: Job, *, epoch: int) -> bool:
    """True for a job that a round of decisions says anything about: it waits, its plan is not settled yet, or it runs
    and wants other cores.

    Where it is true of no job, `decide` answers nothing and `rule_on_plans` rules on nothing, whatever the rest of the
    world is like."""
    return is_waiting(job) or _open_plan(job, epoch) is not None or open_wish(job) is not None


def rule_on_plans(world: World, *, epoch: int, now_s: float) -> tuple[Ruling, ...]:
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
    calm = misfits(replace(after_stops(world), in_flight={}), job_ids)
    still = misfits(replace(world, in_flight={}), job_ids) if world.leaving else calm
    busy = misfits(world, job_ids) if world.in_flight else still
    last_by_node = _last_by_node([(job, plan, calm[job.id]) for job, plan in open_plans])
    rulings: list[Ruling] = []
    for job, plan in open_plans:
        flaw = calm[job.id]
        if flaw is not None:
            if flaw.flaw is not Flaw.NO_CAPACITY or last_by_node[flaw.name] == job.id:
                rulings.append(Ruling(job=job, fate=Fate.DROP, why=flaw))
        elif plan.state is PlacementState.COMMITTED and plan.bind_deadline_s <= now_s:
            rulings.append(Ruling(job=job, fate=Fate.DROP, why=DropCause.LATE))
        else:
            fate = _fate(plan, epoch, fits_beside_all=busy[job.id] is None)
            rulings.append(Ruling(job=job, fate=fate, awaits_stops=still[job.id] is not None))
    return tuple(rulings)


def _open_plan(job: Job, epoch: int) -> Placement | None:
    if job.placement is None or (job.phase is not Phase.QUEUED and job.phase is not Phase.LAUNCHED):
        return None
    plan = live_placement(job)
    if plan is None or len(job.bound) >= job.replicas:
        return None
    return plan if plan.state is PlacementState.COMMITTED or plan.epoch != epoch else None


def _fate(plan: Placement, epoch: int, *, fits_beside_all: bool) -> Fate:
    if plan.state is PlacementState.COMMITTED and fits_beside_all:
        return Fate.RELEASE
    return Fate.ADOPT if plan.epoch != epoch else Fate.SETTLE


def _last_by_node(judged: list[tuple[Job, Placement, Misfit | None]]) -> dict[str, str]:
    last_by_node: dict[str, tuple[tuple[bool, float, str], str]] = {}
    for job, plan, flaw in judged:
        if flaw is not None and flaw.flaw is Flaw.NO_CAPACITY:
            rank = (plan.state is PlacementState.COMMITTED, plan.committed_s, job.id)
            last_by_node[flaw.name] = max(last_by_node.get(flaw.name, (rank, job.id)), (rank, job.id))
    return {name: job_id for name, (_, job_id) in last_by_node.items()}
