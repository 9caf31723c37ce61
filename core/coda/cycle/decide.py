"""One scheduling cycle: from a world to a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import PlannerCache, WorldIndex
from coda.cycle.judging import Judging
from coda.cycle.resize_grants import answers_to_wishes
from coda.cycle.starts import CycleStarts
from coda.cycle.wait_reasons import refusals_of
from coda.model.capacity import after_stops
from coda.model.decision import Decision, Stop
from coda.model.job import JobId, Phase, StopCause
from coda.model.resources import NOTHING, Resources
from coda.model.world import World
from coda.policy.config import PolicyConfig
from coda.policy.reclaim import next_reclaim_s
from coda.promises import PromiseBook, PromiseHold
from coda.tenants.memory import key_of_stop

MOMENT_S: Final = 5.0
"""So long nothing starts beside a job that would not have to stop others if it waited. Our choice: a gang's ranks end
within two seconds, but the plugin that offers a node's GPUs may be away for minutes."""


def decide(
    world: World,
    config: PolicyConfig,
    now_s: float,
    cache: PlannerCache | None = None,
    *,
    book: PromiseBook | None = None,
    explain: int | None = None,
    patient: Set[JobId] = frozenset(),
) -> Decision:
    """Answer every open wish for cores, start every waiting gang that fits whole, in order, and say why the rest waits.

    What ordered stops will free counts as free; placements made there are released once it is. A job that does not fit
    is skipped, so nothing that fits waits behind it. Each waiting job is in `starts` or in `refusals`, once; with
    `explain` only the first `explain` refused are. Reasons hold after all grants and starts: with these committed, the
    next decision grants and starts nothing and refuses the same.

    Nobody stops, or gives cores back, for the jobs in `patient`: what these need comes by itself.

    `world` must pass `check`. Pure: equal arguments, with nodes, jobs and quotas in any order, give equal decisions.
    `cache` only saves time. `book`: the promises of earlier decisions; it is brought up to date. Cost: O(nodes + jobs
    log jobs), and O(nodes) for each distinct constraints and O(amounts) for each distinct request that waits. With a
    cache: O(nodes + jobs) comparisons of pointers, and the above for what changed."""
    book = book or PromiseBook()
    book.begin(now_s)

    # 1. Index the world: only what changed since the last cycle is read.
    cache = cache or PlannerCache()
    leaving, world = world.leaving, after_stops(world)
    book.fair_shares.keep(world.jobs, leaving, now_s)
    index = cache.index_for(world, config, book.expected)
    index.queue.hold_to_levels(now_s, book.expected.proven_run_s, index.capacity, index.nodes_version)
    index.inadmissible.admit(index.queue.pop_new_classes())
    quotas = QuotaLedger(world, index.pending.values())
    judging = Judging(cache.budget)
    if cache.budget is not None:
        cache.budget.begin(index.queue.class_by_key.values(), now_s)

    # 2. Answer resize requests. If jobs stop for one, nothing may start: what they free has its owner.
    reclaim_s = next_reclaim_s(world.reclaimed.values(), config.reclaim, now_s)
    answers = answers_to_wishes(index, quotas, world.in_flight, leaving, now_s, reclaim_s, patient=patient)
    this = CycleStarts(index, quotas, judging, now_s, reclaim_s, patient=patient)
    this.stops = answers.stops

    # 3. Start the jobs that gangs were stopped for, then the overdue ones, and keep nodes for the first of them that
    # does not fit and can pay, of all that share nodes.
    this.start_claimed(book)
    hold = PromiseHold(index)
    with hold:
        if not this.stops:
            this.start_overdue(book, hold)

        # 4. Start the others in order, beside the kept nodes; then, on these, those that are expected to end in time.
        this.start_in_order()
        this.return_lent_gpus(book, hold)
    if hold.kept:
        this.start_in_between(hold, book)
        hold.count_idle()
    this.withheld.release()
    _note_claim(index, this.stops, book, now_s)

    # 5. Explain why the rest waits.
    refusals = refusals_of(index, quotas, now_s, explain, judging, hold=hold, own=this.reasons, notes=this.notes)
    book.settle([kept.promise for kept in hold.kept], index.queue.job_ids())
    used_up_s = [kept.promise.used_up_s(now_s) for kept in hold.kept]
    moments_s = (this.wake_s(), judging.end(), *used_up_s, index.queue.next_level_s(now_s))
    wake_s = min((moment_s for moment_s in moments_s if moment_s is not None), default=None)
    cache.store(index)
    return Decision(
        starts=tuple(this.starts),
        refusals=refusals,
        stops=this.stops,
        grants=answers.grants,
        returns=this.returns,
        denials=answers.denials,
        postponed=answers.postponed,
        faults=tuple(judging.faults),
        wake_s=wake_s,
    )


def _note_claim(index: WorldIndex, stops: Sequence[Stop], book: PromiseBook, now_s: float) -> None:
    """Remember for whom these stop: what stops changes the shares, so that another job would be tried first."""
    if not stops or index.tenants is None:
        return
    holdings = [index.holdings.of(stop.job) for stop in stops]
    notice_s = max([holding.job.stop_notice_s for holding in holdings if holding is not None], default=0.0)
    lent = [key_of_stop(stop) for stop in stops if stop.cause is StopCause.FAIR_SHARE]
    book.fair_shares.note(stops[0].by, lent, now_s, notice_s=min(notice_s, index.config.stop_notice_limit_s))


def decide_around(
    held_back: Mapping[str, Resources],
    world: World,
    config: PolicyConfig,
    now_s: float,
    cache: PlannerCache | None = None,
    book: PromiseBook | None = None,
) -> Decision:
    """Like `decide`, but `held_back` per node must not be used yet: it is free in a moment.

    A job is stopped, or gives cores back, only if it would even with that capacity, and without the old pods of the
    job that it does so for: these have gone, and the watch of pods is late. Nothing else starts meanwhile, so that the
    job that waits for a moment finds the rest of what it needs; but others do once that has lasted for `MOMENT_S`.
    `book` remembers since when. Cost: up to three more decisions, if the first one does that to a job and any capacity
    is free in a moment. Source: our choice."""
    book = book or PromiseBook()
    around = replace(world, in_flight=_with(held_back, world.in_flight)) if held_back else world
    decision = decide(around, config, now_s, cache, book=book)
    takers = _takers(decision)
    soon = _without_old_pods(world, takers) if takers else world
    since_s, book.stands_still_since_s = book.stands_still_since_s, None
    if not takers or (not held_back and soon is world):
        return decision
    free = decide(soon, config, now_s, cache, book=book)
    decision = _as_in(free, decision)
    if _takers(decision):
        return decision
    book.stands_still_since_s = since_s = now_s if since_s is None else min(since_s, now_s)  # clocks step back, too
    goes_on_s = since_s + MOMENT_S
    if now_s < goes_on_s:
        return replace(decision, wake_s=goes_on_s if decision.wake_s is None else min(goes_on_s, decision.wake_s))
    for patient in (takers, frozenset(job.id for job in world.jobs)):
        decision = decide(around, config, now_s, cache, book=book, patient=patient)
        starts_all = not _takers(decision)
        decision = _as_in(free, decision)
        if starts_all or _takers(decision):
            break
    return decision


def _takers(decision: Decision) -> frozenset[JobId]:
    """The jobs for which others stop or give cores back."""
    return frozenset({stop.by for stop in decision.stops} | {order.by for order in decision.returns if order.by})


def _as_in(other: Decision, decision: Decision) -> Decision:
    """The decision without the stops and returns that are not in the other one."""
    return replace(
        decision,
        stops=tuple(stop for stop in decision.stops if stop in other.stops),
        returns=tuple(grant for grant in decision.returns if grant in other.returns),
    )


def _without_old_pods(world: World, takers: Set[JobId]) -> World:
    """Return the world without the pods that these waiting jobs still have of earlier attempts, if there are any.

    A job waits again once its pods are gone. Those on a node that takes no pods may be seen for long: it may be lost.
    O(jobs), and O(nodes) if there are any."""
    old = [(job, job.ending) for job in world.jobs if job.ending and job.phase is Phase.QUEUED and job.id in takers]
    if not old:
        return world
    used, open_nodes = dict(world.used), {node.name for node in world.nodes if node.schedulable}
    for job, nodes in old:
        for node in nodes:
            kept = used.get(node, NOTHING)
            if node in open_nodes and job.request.fits_in(kept - world.leaving.get(node, NOTHING)):
                used[node] = kept - job.request
    return replace(world, used=used)


def _with(held_back: Mapping[str, Resources], in_flight: Mapping[str, Resources]) -> dict[str, Resources]:
    nodes = (*in_flight, *held_back)
    return {node: in_flight.get(node, NOTHING) + held_back.get(node, NOTHING) for node in nodes}
