"""Does a committed plan still stand? Asked before its release and when a new leader adopts it. Moves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from coda.errors import InvalidInput
from coda.model.capacity import free_by_node, live_placement, withheld_ranks
from coda.model.job import Job, JobId, Node, Resources, World
from coda.nodes.eligibility import exclusion, is_blocked


class Flaw(Enum):
    """Why a plan no longer stands; the value ends the sentence "plan dropped: <node> ..."."""

    NO_LIVE_PLAN = "has no live plan"
    NODE_GONE = "is gone"
    NODE_BLOCKED = "is cordoned, not ready or under pressure"
    NODE_REFUSES = "no longer matches the job's selector, affinity or tolerations"
    NO_CAPACITY = "no longer has the room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The first thing wrong with a plan: the flaw, and the node (or, without a live plan, the job) that has it."""

    flaw: Flaw
    name: str

    def __str__(self) -> str:
        return f"{self.name} {self.flaw.value}"


def misfits(world: World, job_ids: Iterable[JobId]) -> dict[JobId, Misfit | None]:
    """Whether each of these jobs' plans still stands: None, or what is wrong. Raises InvalidInput for an unknown job.

    Judged are the nodes of ranks without a bound pod: there, still willing, and the room that all plans together
    withhold really left. Amounts the job does not ask for may be over-committed. `world.in_flight` counts in full: to
    judge by foreign pods admitted before the commit only, pass a world with just those. O(nodes + jobs) for all."""
    job_by_id = {job.id: job for job in world.jobs}
    node_by_name = {node.name: node for node in world.nodes}
    free = free_by_node(world)
    answers: dict[JobId, Misfit | None] = {}
    for job_id in job_ids:
        if job_id not in job_by_id:
            raise InvalidInput(f"job {job_id} is not in this world")
        answers[job_id] = _misfit(job_by_id[job_id], node_by_name, free)
    return answers


def still_fits(world: World, job_id: JobId) -> bool:
    """True when the job has a live plan and every rank of it that is not bound can still go where it says."""
    return misfits(world, [job_id])[job_id] is None


def _misfit(job: Job, node_by_name: Mapping[str, Node], free: Mapping[str, Resources]) -> Misfit | None:
    if live_placement(job) is None:
        return Misfit(flaw=Flaw.NO_LIVE_PLAN, name=job.id)
    for name in sorted({node for _, node in withheld_ranks(job)}):
        flaw = _flaw(job, node_by_name.get(name), free)
        if flaw is not None:
            return Misfit(flaw=flaw, name=name)
    return None


def _flaw(job: Job, node: Node | None, free: Mapping[str, Resources]) -> Flaw | None:
    if node is None:
        return Flaw.NODE_GONE
    if is_blocked(job.demand, node):
        return Flaw.NODE_BLOCKED
    if exclusion(job.demand, node) is not None:
        return Flaw.NODE_REFUSES
    return None if _is_covered(job.request, free[node.name]) else Flaw.NO_CAPACITY


def _is_covered(request: Resources, rest: Resources) -> bool:
    """True when nothing that the request asks for is over-committed: `rest` already has the request taken off."""
    return request.fits_in(rest + request)
