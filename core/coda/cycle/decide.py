"""The decision: what starts now, where, and why everything else waits. What must not live here: any single rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import PlannerCache
from coda.cycle.refusals import refusals_of
from coda.cycle.resize_grants import answers_to_wishes
from coda.cycle.starts import CycleStarts, starts_of_cycle
from coda.model.capacity import after_stops
from coda.model.decision import Decision
from coda.model.resources import NOTHING, Resources
from coda.model.world import World
from coda.policy.config import PolicyConfig


def decide(
    world: World, config: PolicyConfig, now_s: float, cache: PlannerCache | None = None, *, explain: int | None = None
) -> Decision:
    """Answer every open wish for cores; then start every waiting gang that fits whole, in order, and refuse each of the
    others with its reason. What ordered stops will free counts as free for starts, which are released once it is.

    `world` must pass `world.check`. Pure: equal arguments, in any order of nodes, jobs and quotas, give equal plans,
    whatever `memory` has seen before; it only saves time. Each waiting job is in `starts` or in `refusals`, once, but
    for those beyond the first `explain` refused, where that is given. What does not fit is skipped, so nothing runnable
    waits behind it. Reasons describe the world after all grants and starts: with these committed, deciding again gives
    and starts nothing, and refuses alike.
    Cost: O(nodes + jobs log jobs), and O(nodes) for each distinct demand and O(amounts) for each distinct request among
    the waiting jobs. With a memory: O(nodes + jobs) comparisons of pointers, and the above for what changed."""
    cache = cache or PlannerCache()
    leaving, world = world.leaving, after_stops(world)
    index = cache.about(world, config)
    quotas = QuotaLedger(world, index.planned.values())
    answers = answers_to_wishes(index, quotas, world.in_flight, leaving, now_s)
    this = CycleStarts(stops=answers.stops) if answers.stops else starts_of_cycle(index, quotas, now_s)
    refusals = refusals_of(index, quotas, now_s, explain, reserved_for=this.reserved_for)
    cache.keep(index)
    return Decision(
        starts=this.starts,
        refusals=refusals,
        stops=this.stops,
        grants=answers.grants,
        denials=answers.denials,
        postponed=answers.postponed,
        wake_s=this.wake_s,
    )


def decide_around(
    kept: Mapping[str, Resources], world: World, config: PolicyConfig, now_s: float, cache: PlannerCache | None = None
) -> Decision:
    """As `decide`, where `kept` of each node's room is given to nobody yet, but will be free in a moment.

    Nobody is stopped for want of it: only who would be stopped as well if it were free. Cost: a second decision, where
    the first one would stop somebody. Source: our choice."""
    plan = decide(replace(world, in_flight=_with(kept, world.in_flight)) if kept else world, config, now_s, cache)
    if not kept or not plan.stops:
        return plan
    free = decide(world, config, now_s, cache)
    return replace(plan, stops=tuple(stop for stop in plan.stops if stop in free.stops))


def _with(kept: Mapping[str, Resources], in_flight: Mapping[str, Resources]) -> dict[str, Resources]:
    return {node: in_flight.get(node, NOTHING) + kept.get(node, NOTHING) for node in (*in_flight, *kept)}
