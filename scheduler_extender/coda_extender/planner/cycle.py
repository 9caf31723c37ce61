"""One round's thinking, run in a thread beside the event loop: snapshot in, everything to be written out. Pure but for
the dictionary of job objects it looks reasons up in.

Whatever grows with the number of jobs is done here and not in the event loop, and in steps of Python rather than in one
long call of C: a filter answer waits for the interpreter no longer than a step takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coda.cache.world_index import PlannerCache
from coda.cycle.decide import decide_around
from coda.model.decision import Decision, Refusal, WaitCode
from coda.model.job import Job, JobId
from coda.model.resources import NOTHING
from coda.model.world import World
from coda.placements.guard import InFlight, in_flight_by_node
from coda.placements.review import PlacementDefect, PlacementReview, review_placements
from coda.policy.config import PolicyConfig
from coda_extender.planner.pending_reasons import PendingNotice, PendingNotices, notice_for
from coda_kube.objects.json_types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """What one round came to. `gpus_wanted`: by all jobs refused; `wake_s`: when time alone may change the answer."""

    rulings: tuple[PlacementReview, ...]
    plan: Decision
    starting: Mapping[JobId, Job]  # as they were decided on
    stopping: Mapping[JobId, Job]  # likewise
    wishing: Mapping[JobId, Job]  # those whose wish is answered, as they were decided on
    notices: PendingNotices
    jobs_by_code: Mapping[WaitCode, int]
    gpus_wanted: int
    wake_s: float | None

    @property
    def waits(self) -> bool:
        """True while a job waits for room that foreign pods in flight may leave."""
        return bool(self.plan.refusals or self.plan.postponed)


def rule(world: World, in_flight: tuple[InFlight, ...], *, epoch: int, now_s: float) -> tuple[PlacementReview, ...]:
    """What becomes of the plans that are not in force yet."""
    return review_placements(_with_in_flight(world, in_flight), epoch=epoch, now_s=now_s)


def words_of(ruling: PlacementReview) -> tuple[str, str]:
    """Why a plan is dropped: a sentence, and a metric's label; empty for one that is not."""
    why = ruling.why
    if isinstance(why, PlacementDefect):
        return str(why), why.flaw.name
    return (why.value, why.name) if why is not None else ("", "")


class CycleRunner:
    """Thinks one round after the other, and remembers what need not be thought again. Not for two threads at once."""

    def __init__(self) -> None:
        self._memory = PlannerCache()
        self._notice_by_job: dict[JobId, tuple[Refusal, Json | None, PendingNotice | None]] = {}

    def think(
        self,
        world: World,
        in_flight: tuple[InFlight, ...],
        json_by_job: Mapping[JobId, Json],
        config: PolicyConfig,
        *,
        epoch: int,
        now_s: float,
    ) -> CycleResult:
        """Rule on the plans there are, decide what starts, and find the reasons that are not written yet.

        `world.in_flight` is what is kept of attempts that are ending; the foreign pods `in_flight` come on top."""
        free = _with_in_flight(replace(world, in_flight={}), in_flight)
        plan = decide_around(world.in_flight, free, config, now_s, self._memory)
        world = _with_in_flight(world, in_flight)
        rulings = review_placements(world, epoch=epoch, now_s=now_s)
        job_by_id = {job.id: job for job in world.jobs}
        waiting = [job_by_id[refusal.job] for refusal in plan.refusals]
        moments = [job.not_before_s for job in waiting if job.not_before_s > now_s]
        moments += [wish.deadline_s for job in plan.postponed if (wish := job_by_id[job].wish) is not None]
        moments += [
            ruling.job.placement.bind_deadline_s for ruling in rulings if ruling.awaits_stops and ruling.job.placement
        ]
        return CycleResult(
            rulings=rulings,
            plan=plan,
            starting={start.job: job_by_id[start.job] for start in plan.starts},
            stopping={stop.job: job_by_id[stop.job] for stop in plan.stops},
            wishing={
                answer.job: job_by_id[answer.job] for answers in (plan.grants, plan.denials) for answer in answers
            },
            notices=self._notices(plan.refusals, json_by_job),
            jobs_by_code=Counter([refusal.reason.code for refusal in plan.refusals]),
            gpus_wanted=sum(job.replicas * job.request.gpus for job in waiting),
            wake_s=min(moments, default=None),
        )

    def _notices(self, refusals: tuple[Refusal, ...], json_by_job: Mapping[JobId, Json]) -> PendingNotices:
        """What is to be written; asked anew only where the refusal or the object is another one than before."""
        known = self._notice_by_job
        if len(known) > 2 * len(refusals) + 1000:
            known.clear()
        notices: list[PendingNotice] = []
        jobs = [refusal.job for refusal in refusals]
        for refusal, item, before in zip(refusals, map(json_by_job.get, jobs), map(known.get, jobs), strict=True):
            if before is None or before[0] is not refusal or before[1] is not item:
                before = known[refusal.job] = (refusal, item, notice_for(refusal, item))
            if before[2] is not None:
                notices.append(before[2])
        return PendingNotices.of(notices)


def _with_in_flight(world: World, pods: tuple[InFlight, ...]) -> World:
    if not pods:
        return world
    in_flight = in_flight_by_node(pods, [node.name for node in world.nodes])
    for node, amount in world.in_flight.items():
        in_flight[node] = in_flight.get(node, NOTHING) + amount
    return replace(world, in_flight=in_flight)
