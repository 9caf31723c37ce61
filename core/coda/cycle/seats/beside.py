"""The opportunistic half of a cycle, after all other jobs are decided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from coda.cache.quotas import QuotaLedger
from coda.cycle.seats.board import board_from
from coda.cycle.seats.moves import with_moves
from coda.cycle.seats.seat_reasons import SHARING_OFF
from coda.cycle.seats.seat_starts import SeatStarts
from coda.cycle.seats.turns import in_turn, seats_by_tenant
from coda.cycle.seats.yielding import Yielded, yielded
from coda.model.decision import Decision, Refusal, Start, WaitCode, WaitReason
from coda.model.job import Job, JobId, SharingWish
from coda.model.live_placement import is_waiting
from coda.model.resources import Resources
from coda.model.seats import can_have_seats, is_sharer, sharers_of
from coda.model.world import World
from coda.policy.config import PolicyConfig
from coda.sharing.config import SharingConfig
from coda.sharing.job_classes import SharingClass, class_for

YIELDING: Final = WaitReason(
    code=WaitCode.HELD_BY_POLICY, message="capacity is being freed for others; it starts once these have theirs"
)

_PAST_S: Final = 0.001  # a job has waited longer than the limit only after it


def with_sharers(
    decision: Decision, world: World, config: PolicyConfig, now_s: float, passing: Mapping[str, Resources]
) -> Decision:
    """Return a decision about the others (`without_sharers`) with that about opportunistic jobs; the same object if
    there are none, and nobody waits who may become one.

    Those stop that hold what the others need now. Then those that wait start on seats, by priority, how few seats their
    tenant has (`turns`), time in the queue and name, if GPUs are shared here. One of class Auto is tried on seats once
    it has waited long, after these. While
    anybody stops or gives cores back, or a wish for cores is postponed, nobody starts on seats: who waits for that may
    need what is free beside it, too. Last, those stop that should move. `world`: with everything in flight; `passing`:
    the part of it, by node name, for which nobody stops. O(jobs log jobs), and O(GPUs with seats) for each that waits.
    """
    sharers = sharers_of(world.jobs)
    waits_long, due_s = _autos(decision, world, config, now_s)
    if not sharers and not waits_long:
        return decision if due_s is None else replace(decision, wake_s=_earliest(decision.wake_s, due_s))
    result = yielded(decision, world, passing)
    waiting = sorted([job for job in sharers if is_waiting(job)], key=_turn)
    starts: list[Start] = []
    refusals: list[Refusal] = []
    if config.shares_gpus:
        seats, had = _seat_starts(result, world, config, now_s), seats_by_tenant(sharers)
        others = result.decision
        is_yielding = bool(others.stops or others.returns or others.postponed)
        for job, found in chain(_answers(waiting, seats, had), _answers(waits_long, seats, had)):
            if isinstance(found, Start) and not is_yielding:
                starts.append(found)
            elif is_sharer(job):  # for another one, what is short of whole GPUs stays the reason
                refusals.append(Refusal(job.id, job.generation, YIELDING if isinstance(found, Start) else found))
    else:
        refusals += [Refusal(job.id, job.generation, SHARING_OFF) for job in waiting]
    started = {start.job for start in starts}
    decided = replace(
        result.decision,
        starts=(*decision.starts, *starts),
        refusals=(*[refusal for refusal in decision.refusals if refusal.job not in started], *refusals),
        wake_s=_earliest(decision.wake_s, due_s),
    )
    return with_moves(decided, world)


def _answers(
    waiting: Iterable[Job], seats: SeatStarts, had: dict[str, int]
) -> Iterator[tuple[Job, Start | WaitReason]]:
    """Yield what each gets. `had`: seats by tenant, which grow."""
    for job in in_turn(waiting, had):
        found = seats.start(job)
        if isinstance(found, Start):
            had[job.virtual_cluster] = had.get(job.virtual_cluster, 0) + job.replicas
        yield job, found


def _autos(decision: Decision, world: World, config: PolicyConfig, now_s: float) -> tuple[list[Job], float | None]:
    """The jobs of class Auto that wait for GPUs of their own and may have seats by now, and when the next one may."""
    if not config.shares_gpus:
        return [], None
    autos = [job for job in world.jobs if job.sharing is SharingWish.AUTO and can_have_seats(job) and is_waiting(job)]
    if not autos:
        return [], None
    refused = {refusal.job for refusal in decision.refusals}
    sharing = SharingConfig(auto_wait_s=config.auto_wait_s)
    long, due_s = [], []
    for job in autos:
        waited_s = now_s - max(job.queued_s, job.waiting_s)
        if job.id not in refused:
            continue
        if class_for(job.sharing, expected_wait_s=waited_s, config=sharing) is SharingClass.OPPORTUNISTIC:
            long.append(job)
        else:
            due_s.append(now_s - waited_s + config.auto_wait_s + _PAST_S)
    return sorted(long, key=_turn), min(due_s, default=None)


def _seat_starts(result: Yielded, world: World, config: PolicyConfig, now_s: float) -> SeatStarts:
    job_by_id = {job.id: job for job in world.jobs}
    quotas = QuotaLedger(world)
    for start in result.decision.starts:
        quotas.count_start(job_by_id[start.job])
    board = board_from(world, result.free)
    return SeatStarts(nodes=world.nodes, free=dict(result.free), board=board, quotas=quotas, config=config, now_s=now_s)


def _turn(job: Job) -> tuple[int, float, JobId]:
    return -job.priority, job.queued_s, job.id


def _earliest(one_s: float | None, other_s: float | None) -> float | None:
    return min([moment_s for moment_s in (one_s, other_s) if moment_s is not None], default=None)
