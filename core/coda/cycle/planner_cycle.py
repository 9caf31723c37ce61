"""One whole cycle of the planner as a pure function: a snapshot in, everything to write out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from coda.cache.world_index import PlannerCache
from coda.cycle.decide import decide_around
from coda.model.decision import Decision, Denial, Grant, Start, Stop, WaitCode
from coda.model.job import Job, JobId
from coda.model.resources import NOTHING
from coda.model.world import World
from coda.placements.filter_rules import InFlight, in_flight_by_node
from coda.placements.review import PlacementReview, review_placements
from coda.policy.config import PolicyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSnapshot:
    """What one cycle sees. `world.in_flight`: capacity held back for a moment, of attempts that are ending.

    `foreign`: the foreign pods in flight, which `world` does not count."""

    world: World
    foreign: tuple[InFlight, ...] = ()
    epoch: int
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """What one cycle came to, and when the next one is due though nothing changed (`wake_s`)."""

    decision: Decision
    reviews: tuple[PlacementReview, ...]
    decided_on: Mapping[JobId, Job]  # each job that starts, stops or has its wish answered, as the cycle saw it
    jobs_by_code: Mapping[WaitCode, int]
    gpus_wanted: int  # by all refused jobs
    wake_s: float | None

    @property
    def leaves_jobs_waiting(self) -> bool:
        """True if a job waits, perhaps for capacity that foreign pods in flight may leave."""
        return bool(self.decision.refusals or self.decision.postponed)


def run_cycle(snapshot: CycleSnapshot, config: PolicyConfig, cache: PlannerCache) -> CycleResult:
    """Decide what starts, stops and grows, and review the placements that are not in force yet.

    Pure, as `decide` is: the cache saves time and changes nothing. Cost: that of `decide` and `review_placements`."""
    world = snapshot.world
    free = _with_foreign(replace(world, in_flight={}), snapshot.foreign)
    decision = decide_around(world.in_flight, free, config, snapshot.now_s, cache)
    reviews = review_snapshot(snapshot)
    job_by_id = {job.id: job for job in world.jobs}
    waiting = [job_by_id[refusal.job] for refusal in decision.refusals]
    changed: tuple[Start | Stop | Grant | Denial, ...] = (
        *decision.starts,
        *decision.stops,
        *decision.grants,
        *decision.denials,
    )
    return CycleResult(
        decision=decision,
        reviews=reviews,
        decided_on={change.job: job_by_id[change.job] for change in changed},
        jobs_by_code=Counter([refusal.reason.code for refusal in decision.refusals]),
        gpus_wanted=sum(job.replicas * job.request.gpus for job in waiting),
        wake_s=min(
            (
                *(job.not_before_s for job in waiting if job.not_before_s > snapshot.now_s),
                *(wish.deadline_s for job in decision.postponed if (wish := job_by_id[job].wish) is not None),
                *_stop_deadlines_s(reviews),
            ),
            default=None,
        ),
    )


def review_snapshot(snapshot: CycleSnapshot) -> tuple[PlacementReview, ...]:
    """The reviews of the placements that are not in force yet, beside everything in flight or held back."""
    world = _with_foreign(snapshot.world, snapshot.foreign)
    return review_placements(world, epoch=snapshot.epoch, now_s=snapshot.now_s)


def _stop_deadlines_s(reviews: tuple[PlacementReview, ...]) -> Iterator[float]:
    """When placements are dropped whose stopped jobs have not left by then."""
    for review in reviews:
        if review.awaits_stops and review.job.placement is not None:
            yield review.job.placement.bind_deadline_s


def _with_foreign(world: World, pods: tuple[InFlight, ...]) -> World:
    """The world with these pods in flight besides what it counts already."""
    if not pods:
        return world
    in_flight = in_flight_by_node(pods, [node.name for node in world.nodes])
    for node, amount in world.in_flight.items():
        in_flight[node] = in_flight.get(node, NOTHING) + amount
    return replace(world, in_flight=in_flight)
