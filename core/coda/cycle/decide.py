"""One scheduling cycle: from a world to a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import PlannerCache
from coda.cycle.reservation import ReservationHold
from coda.cycle.resize_grants import answers_to_wishes
from coda.cycle.starts import CycleStarts
from coda.cycle.wait_reasons import refusals_of
from coda.model.capacity import after_stops
from coda.model.decision import Decision
from coda.model.resources import NOTHING, Resources
from coda.model.world import World
from coda.policy.config import PolicyConfig


def decide(
    world: World, config: PolicyConfig, now_s: float, cache: PlannerCache | None = None, *, explain: int | None = None
) -> Decision:
    """Answer every open wish for cores, start every waiting gang that fits whole, in order, and say why the rest waits.

    What ordered stops will free counts as free; placements made there are released once it is. A job that does not fit
    is skipped, so nothing that fits waits behind it. Each waiting job is in `starts` or in `refusals`, once; with
    `explain` only the first `explain` refused are. Reasons hold after all grants and starts: with these committed, the
    next decision grants and starts nothing and refuses the same.

    `world` must pass `check`. Pure: equal arguments, with nodes, jobs and quotas in any order, give equal decisions.
    `cache` only saves time. Cost: O(nodes + jobs log jobs), and O(nodes) for each distinct constraints and O(amounts)
    for each distinct request that waits. With a cache: O(nodes + jobs) comparisons of pointers, and the above for what
    changed."""
    # 1. Index the world: only what changed since the last cycle is read.
    cache = cache or PlannerCache()
    leaving, world = world.leaving, after_stops(world)
    index = cache.index_for(world, config)
    quotas = QuotaLedger(world, index.pending.values())

    # 2. Answer resize requests. If jobs stop for one, nothing may start: what they free has its owner.
    answers = answers_to_wishes(index, quotas, world.in_flight, leaving, now_s)
    this = CycleStarts(index, quotas, now_s)
    this.stops = answers.stops

    # 3. Start the overdue jobs, and reserve nodes for the first of them that does not fit.
    reservation = None if this.stops else this.start_overdue()

    # 4. Start the others in order, beside the reservation.
    with ReservationHold(index, reservation):
        this.start_in_order()
    wake_s = this.wake_s()

    # 5. Explain why the rest waits.
    reserved_for = None if reservation is None else reservation.job.id
    refusals = refusals_of(index, quotas, now_s, explain, reserved_for=reserved_for)
    cache.store(index)
    return Decision(
        starts=tuple(this.starts),
        refusals=refusals,
        stops=this.stops,
        grants=answers.grants,
        denials=answers.denials,
        postponed=answers.postponed,
        wake_s=wake_s,
    )


def decide_around(
    held_back: Mapping[str, Resources],
    world: World,
    config: PolicyConfig,
    now_s: float,
    cache: PlannerCache | None = None,
) -> Decision:
    """Like `decide`, but `held_back` per node must not be used yet: it is free in a moment.

    A job is stopped only if it would be stopped even with that capacity. Cost: a second decision, if the first one
    stops a job. Source: our choice."""
    decision = decide(
        replace(world, in_flight=_with(held_back, world.in_flight)) if held_back else world, config, now_s, cache
    )
    if not held_back or not decision.stops:
        return decision
    free = decide(world, config, now_s, cache)
    return replace(decision, stops=tuple(stop for stop in decision.stops if stop in free.stops))


def _with(held_back: Mapping[str, Resources], in_flight: Mapping[str, Resources]) -> dict[str, Resources]:
    nodes = (*in_flight, *held_back)
    return {node: in_flight.get(node, NOTHING) + held_back.get(node, NOTHING) for node in nodes}
