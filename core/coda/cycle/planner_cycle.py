"""One whole cycle of the planner as a pure function: a snapshot in, everything to write out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coda.cache.judging_budget import Clock
from coda.cache.world_index import PlannerCache
from coda.cycle.decide import decide, decide_around
from coda.cycle.faults import text_of
from coda.cycle.isolation import SetApart
from coda.cycle.seats import Upgrades, with_joinable, with_sharers, without_sharers
from coda.history.ended_runs import EndedRuns
from coda.model.decision import Decision, Denial, Fault, Grant, Start, Stop, WaitCode, WaitReason
from coda.model.job import Job, JobId
from coda.model.resources import NOTHING
from coda.model.seats import is_sharer
from coda.model.world import World
from coda.placements.filter_rules import InFlight, in_flight_by_node
from coda.placements.review import PlacementReview, review_placements
from coda.policy.config import PolicyConfig
from coda.promises import PromiseBook

_NO_NODE_HELPS: Final = frozenset(
    {
        WaitCode.QUOTA_EXCEEDED,
        WaitCode.VIRTUAL_CLUSTER_FULL,
        WaitCode.UNKNOWN_LEVEL,
        WaitCode.EDITED,
        WaitCode.UNREADABLE,
        WaitCode.STATUS_UNWRITABLE,
        WaitCode.ROLLING_BACK,
        WaitCode.BACKING_OFF,
    }
)
"""What keeps a job waiting however many nodes there are. One that cannot be judged is not counted at all.

Slow writes and changes meanwhile are not of them: a slow API server must not look like no demand, or nodes would go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSnapshot:
    """What one cycle sees. `world.in_flight`: capacity held back for a moment, of attempts that are ending.

    `foreign`: the foreign pods in flight, which `world` does not count. `in_flight_for_s`: how long there have always
    been some that may land on several nodes; 0: this is not judged now."""

    world: World
    foreign: tuple[InFlight, ...] = ()
    epoch: int
    now_s: float
    in_flight_for_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """What one cycle came to, and when the next one is due though nothing changed (`wake_s`)."""

    decision: Decision
    reviews: tuple[PlacementReview, ...]
    decided_on: Mapping[JobId, Job]  # each job that starts, stops or has its wish answered, as the cycle saw it
    jobs_by_code: Mapping[WaitCode, int]
    gpus_wanted: int  # by refused jobs that more nodes may help; an autoscaler reads it
    gpus_unmatched: int  # those of them for which a node must be of another kind than every present one
    wake_s: float | None
    apart: Fault | None = None  # what is left out because it cannot be judged, whenever that was found

    @property
    def leaves_jobs_waiting(self) -> bool:
        """True if a job waits, perhaps for capacity that foreign pods in flight may leave."""
        return bool(self.jobs_by_code or self.decision.postponed)


class CycleCache:
    """What one cycle leaves for the next: the planner's cache, what is set apart because it cannot be judged, what was
    promised, and whose turn it is to leave its seats. Promises and turns end with the process; the next planner makes
    them again.

    `clock`: see `PlannerCache`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.planner = PlannerCache(clock)
        self.beside_in_flight = PlannerCache(clock)  # of worlds in which foreign pods in flight do not count
        self.apart = SetApart()
        self.book = PromiseBook()
        self.upgrades = Upgrades()
        self.ended = EndedRuns()


def run_cycle(snapshot: CycleSnapshot, config: PolicyConfig, cache: CycleCache) -> CycleResult:
    """Decide what starts, stops and grows, and review the placements that are not in force yet.

    An error in judging one object leaves that object out, and is one of `decision.faults`. But for this,
    promises and turns, the cache saves time and changes nothing. Cost: that of `decide` and `review_placements`."""
    apart = cache.apart
    cache.ended.learn(snapshot.world.jobs, cache.book.run_times, snapshot.now_s)
    result, fault = apart.judge(
        snapshot.world,
        lambda world: _run(replace(snapshot, world=world), config, cache.planner, cache.book, cache.upgrades),
        lambda world: _run(replace(snapshot, world=world), config, PlannerCache(), PromiseBook(), Upgrades()),
    )
    result, later = _with_reservation(snapshot, config, result, cache)
    if config.shares_gpus and result.decision.starts:
        result = replace(result, decision=with_joinable(result.decision, snapshot.world))
    found = tuple([each for each in (fault, later) if each is not None])
    standing = apart.standing()
    if standing is not None:
        result = replace(result, apart=standing)
    if not apart.jobs and not found:
        return result
    decision = result.decision
    judged = [refusal for refusal in decision.refusals if refusal.job not in apart.jobs]
    refusals = (*judged, *apart.refusals())
    return replace(
        result,
        decision=replace(decision, refusals=refusals, faults=(*decision.faults, *found)),
        jobs_by_code=Counter([refusal.reason.code for refusal in refusals]),
    )


PASSED_BY_S: Final = 5.0
"""After this time in which pods in flight came one after the other, the head of the queue is committed beside them.
Our choice: many times what a bind takes."""


def _with_reservation(
    snapshot: CycleSnapshot, config: PolicyConfig, result: CycleResult, cache: CycleCache
) -> tuple[CycleResult, Fault | None]:
    """Commit the first job that only a steady stream of foreign pods in flight keeps from starting.

    Then the filter keeps its nodes from more of them, and it is released when those in flight have landed elsewhere;
    else it is dropped after a while, see `is_given_up`. One job at a time. Pods that can land on one node only are
    not overlooked: they may stay in flight for minutes. What cannot be judged is set apart, as in the first decision;
    whatever else goes wrong, that one stands. Cost: a second decision."""
    decision = result.decision
    if snapshot.in_flight_for_s < PASSED_BY_S or not decision.refusals:
        return result, None
    if (
        decision.starts
        or decision.stops
        or decision.returns
        or any(review.awaits_in_flight for review in result.reviews)
    ):
        return result, None
    lasting = tuple(pod for pod in snapshot.foreign if _lands_on_one_node(pod))

    def again(world: World, planner: PlannerCache) -> Decision:
        book = cache.book.beside()
        world = without_sharers(world, yielding=False)
        return decide(_with_foreign(world, lasting), config, snapshot.now_s, planner, book=book, explain=0)

    try:
        second, fault = cache.apart.judge(
            snapshot.world,
            lambda world: again(world, cache.beside_in_flight),
            lambda world: again(world, PlannerCache()),
        )
    except Exception as error:  # nobody is to blame alone: the others are decided without this step
        return result, Fault(jobs=(), nodes=(), quotas=(), traceback=text_of(error))
    starts = second.starts[:1]
    if not starts:
        return result, fault
    (job,) = (job for job in snapshot.world.jobs if job.id == starts[0].job)
    waiting = tuple(refusal for refusal in decision.refusals if refusal.job != job.id)
    reserved = replace(
        result,
        decision=replace(decision, starts=starts, refusals=waiting),
        decided_on={**result.decided_on, job.id: job},
        jobs_by_code=Counter([refusal.reason.code for refusal in waiting]),
    )
    return reserved, fault


def _run(
    snapshot: CycleSnapshot, config: PolicyConfig, cache: PlannerCache, book: PromiseBook, upgrades: Upgrades
) -> CycleResult:
    world, others = snapshot.world, without_sharers(snapshot.world)
    free = _with_foreign(replace(others, in_flight={}), snapshot.foreign)
    decision = decide_around(others.in_flight, free, config, snapshot.now_s, cache, book)
    has_sharers = others is not world
    if config.shares_gpus or has_sharers:
        beside = _with_foreign(world, snapshot.foreign)
        passing = _with_foreign(world, tuple(pod for pod in snapshot.foreign if not _lands_on_one_node(pod)))
        decision = with_sharers(decision, beside, config, snapshot.now_s, passing.in_flight)
        decision = upgrades.with_upgrade(
            decision,
            beside,
            config,
            snapshot.now_s,
            lambda world: decide(world, config, snapshot.now_s, book=book.beside(), explain=0),
        )
    reviews = _review(snapshot)
    job_by_id = {job.id: job for job in world.jobs}
    waiting = [job_by_id[refusal.job] for refusal in decision.refusals]
    helped = [
        (job.replicas * job.request.gpus, refusal.reason)
        for job, refusal in zip(waiting, decision.refusals, strict=True)
        if refusal.reason.code not in _NO_NODE_HELPS and not (has_sharers and is_sharer(job))
    ]
    changed: tuple[Start | Stop | Grant | Denial, ...] = (
        *decision.starts,
        *decision.stops,
        *decision.grants,
        *decision.returns,
        *decision.denials,
    )
    return CycleResult(
        decision=decision,
        reviews=reviews,
        decided_on={change.job: job_by_id[change.job] for change in changed},
        jobs_by_code=Counter([refusal.reason.code for refusal in decision.refusals]),
        gpus_wanted=sum([gpus for gpus, _ in helped]),
        gpus_unmatched=sum([gpus for gpus, reason in helped if _is_unmatched(reason)]),
        wake_s=min(
            (
                *[job.not_before_s for job in waiting if job.not_before_s > snapshot.now_s],
                *(wish.deadline_s for job in decision.postponed if (wish := job_by_id[job].wish) is not None),
                *((decision.wake_s,) if decision.wake_s is not None else ()),
                *_stop_deadlines_s(reviews),
            ),
            default=None,
        ),
    )


def _is_unmatched(reason: WaitReason) -> bool:
    """True if no present node, even if it were empty, could hold one rank. More nodes like them do not help."""
    if reason.code is WaitCode.NEVER_FITS:
        return reason.numbers.get("ranks_when_empty", 0) == 0
    return reason.code is WaitCode.NO_MATCHING_NODE


def _lands_on_one_node(pod: InFlight) -> bool:
    return pod.nodes is not None and len(pod.nodes) == 1


def review_snapshot(snapshot: CycleSnapshot) -> tuple[PlacementReview, ...]:
    """The reviews of the placements that are not in force yet, beside everything in flight or held back.

    A placement that cannot be judged gets none, and nothing else is placed on its nodes."""

    def review(world: World) -> tuple[PlacementReview, ...]:
        return _review(replace(snapshot, world=world))

    reviews, _ = SetApart().judge(snapshot.world, review, review)  # the next cycle reports what cannot be judged
    return reviews


def _review(snapshot: CycleSnapshot) -> tuple[PlacementReview, ...]:
    world = _with_foreign(snapshot.world, snapshot.foreign)
    return review_placements(world, epoch=snapshot.epoch, now_s=snapshot.now_s)


def _stop_deadlines_s(reviews: tuple[PlacementReview, ...]) -> Iterator[float]:
    """When placements are dropped whose stopped jobs have not left by then."""
    return (review.late_s for review in reviews if review.awaits_stops)


def _with_foreign(world: World, pods: tuple[InFlight, ...]) -> World:
    """The world with these pods in flight besides what it counts already."""
    if not pods:
        return world
    in_flight = in_flight_by_node(pods, [node.name for node in world.nodes])
    for node, amount in world.in_flight.items():
        in_flight[node] = in_flight.get(node, NOTHING) + amount
    return replace(world, in_flight=in_flight)
