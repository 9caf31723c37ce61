"""One round's thinking, run in a thread beside the event loop: snapshot in, everything to be written out. Pure but for
the dictionary of job objects it looks reasons up in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coda.config import PolicyConfig
from coda.guarding import InFlight, in_flight_by_node
from coda.model import Job, JobId, Plan, World
from coda.plan import decide
from coda.releasing import Ruling, rule_on_plans
from coda_extender.reasons import Wish, wish_for
from coda_kube.client import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """What one round came to. `waiting` are the jobs refused, `wake_s` when time alone may change the answer."""

    rulings: tuple[Ruling, ...]
    plan: Plan
    job_by_id: Mapping[JobId, Job]
    waiting: tuple[Job, ...]
    wishes: tuple[Wish, ...]
    wake_s: float | None


def rule(world: World, in_flight: tuple[InFlight, ...], *, epoch: int, now_s: float) -> tuple[Ruling, ...]:
    """What becomes of the plans that are not in force yet."""
    return rule_on_plans(_with_in_flight(world, in_flight), epoch=epoch, now_s=now_s)


def think(
    world: World,
    in_flight: tuple[InFlight, ...],
    json_by_job: Mapping[JobId, Json],
    config: PolicyConfig,
    *,
    epoch: int,
    now_s: float,
) -> Thought:
    """Rule on the plans there are, decide what starts, and find the reasons that are not written yet."""
    world = _with_in_flight(world, in_flight)
    plan = decide(world, config, now_s)
    job_by_id = {job.id: job for job in world.jobs}
    wishes = [wish_for(refusal, json_by_job.get(refusal.job)) for refusal in plan.refusals]
    waiting = tuple(job_by_id[refusal.job] for refusal in plan.refusals)
    return Thought(
        rulings=rule_on_plans(world, epoch=epoch, now_s=now_s),
        plan=plan,
        job_by_id=job_by_id,
        waiting=waiting,
        wishes=tuple(wish for wish in wishes if wish is not None),
        wake_s=min((job.not_before_s for job in waiting if job.not_before_s > now_s), default=None),
    )


def _with_in_flight(world: World, pods: tuple[InFlight, ...]) -> World:
    if not pods:
        return world
    return replace(world, in_flight=in_flight_by_node(pods, [node.name for node in world.nodes]))
