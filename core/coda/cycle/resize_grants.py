"""Answers to the wishes of running jobs for other core counts.

A wish for fewer cores is always granted. A wish for more is granted for all ranks or for none. In the arrays, CPU jobs
that borrowed cores can be stopped for a GPU job's wish. Wishes go before starts: a few cores for idle GPUs are worth
more than the same cores for a waiting job (our choice; CODA gives no order). What cannot be granted is denied at once,
because the search has other counts to try. What a search tries without is withheld for it (`live_placement`): it is
asked for back within minutes, and its neighbours have it by then (our choice).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from coda.cache.job_facts import OpenWish
from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import WorldIndex
from coda.cycle.victims import reclaimed_for_growth
from coda.model.decision import Denial, DenialCode, Grant, Stop, name_for
from coda.model.job import TAKEN_BACK, Job, JobId, Wish, WishAnswer
from coda.model.live_placement import growth_by_node
from coda.model.resources import Resources
from coda.policy.config import PolicyConfig
from coda.wording import counted, quota_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """As in `Decision`. With `stops` nothing may start in this cycle: what they free has its owner."""

    grants: tuple[Grant, ...] = ()
    denials: tuple[Denial, ...] = ()
    postponed: tuple[JobId, ...] = ()
    stops: tuple[Stop, ...] = ()


_NO_ANSWERS: Final = Answers()


def answers_to_wishes(
    index: WorldIndex,
    quotas: QuotaLedger,
    in_flight: Mapping[str, Resources],
    leaving: Mapping[str, Resources],
    now_s: float,
    next_reclaim_s: float = -inf,
    *,
    patient: Set[JobId] = frozenset(),
) -> Answers:
    """Grant or deny every open wish, the oldest first (ties: by id). What is granted is taken from `index`.

    Postponed until its deadline is a wish that only foreign pods in flight are in the way of; the wish that `stops` are
    for, and all after it; and a wish that fits once stopped jobs have left, whose capacity it gets. `next_reclaim_s`:
    nobody is stopped for a wish before it. Nor for those of the `patient`, which are postponed instead.
    Cost: O(jobs with an open wish x their ranks)."""
    if not index.wishing:
        return _NO_ANSWERS
    this = _Answering(index, quotas, in_flight, leaving, now_s, next_reclaim_s, patient)
    for job, asked in sorted(index.wishing.values(), key=_sort_key):
        this.answer(job, asked)
    return Answers(
        grants=tuple(this.grants),
        denials=tuple(this.denials),
        postponed=tuple(this.postponed),
        stops=this.stops,
    )


def _sort_key(wishing: tuple[Job, OpenWish]) -> tuple[float, str]:
    job, asked = wishing
    return (asked.wish.since_s, job.id)


def answer_from_grant(grant: Grant, now_s: float, config: PolicyConfig) -> WishAnswer:
    """Return what the placement says from now on: the growth is withheld until the resize has ended."""
    return WishAnswer(
        sequence=grant.sequence,
        granted=True,
        cores=grant.cores,
        answered_s=now_s,
        deadline_s=now_s + config.resize_deadline_s,
    )


def answer_from_return(grant: Grant, job: Job, now_s: float, config: PolicyConfig) -> WishAnswer:
    """Return what the placement of `job` says from now on: it gives cores back until the deadline, or not at all."""
    cores = counted(job.cpus_per_replica - grant.cores, "core")
    by = name_for(job.namespace, grant.by) if grant.by is not None else "a CPU job"
    return replace(
        answer_from_grant(grant, now_s, config),
        code=TAKEN_BACK,
        message=f"{cores} per rank of the CPU array go back to it, for {by}",
    )


def answer_from_denial(denial: Denial, now_s: float) -> WishAnswer:
    """Return what the placement says from now on: nothing changes."""
    return WishAnswer(
        sequence=denial.sequence,
        granted=False,
        cores=denial.most_cores,
        answered_s=now_s,
        deadline_s=now_s,
        code=denial.code.value,
        message=denial.message,
    )


class _Answering:
    def __init__(
        self,
        index: WorldIndex,
        quotas: QuotaLedger,
        in_flight: Mapping[str, Resources],
        leaving: Mapping[str, Resources],
        now_s: float,
        next_reclaim_s: float,
        patient: Set[JobId],
    ) -> None:
        self._patient = patient
        self._index = index
        self._quotas = quotas
        self._in_flight = in_flight
        self._leaving = leaving
        self._now_s = now_s
        self._next_reclaim_s = next_reclaim_s
        self.grants: list[Grant] = []
        self.denials: list[Denial] = []
        self.postponed: list[JobId] = []
        self.stops: tuple[Stop, ...] = ()
        self._held: Mapping[str, int] = {}  # what is withheld for the job that is answered now

    def answer(self, job: Job, asked: OpenWish) -> None:
        """Grant, deny or postpone the job's wish."""
        wish, growth, self._held = asked
        if self._now_s > wish.deadline_s:
            self._deny(job, wish, DenialCode.EXPIRED, "nobody waits for it any more")
        elif not growth:
            self._grant(job, wish)
        elif self.stops:
            self.postponed.append(job.id)
        else:
            self._answer_growth(job, wish, growth)

    def _answer_growth(self, job: Job, wish: Wish, growth: Mapping[str, int]) -> None:
        number_by_name = self._index.capacity.number_by_name
        gone = sorted(name for name in growth if name not in number_by_name)
        if gone:
            self._deny(job, wish, DenialCode.NODE_GONE, f"node {gone[0]} is not there")
            return
        total_m = sum(growth.values())
        short = self._quotas.growth_shortage(job, total_m)
        if short is not None:
            needed, left = quota_text(short.key, total_m), quota_text(short.key, max(0, short.left_milli))
            message = f"needs {needed} more of {short.key}, and ResourceQuota {short.quota} leaves {left}"
            self._deny(job, wish, DenialCode.QUOTA_EXCEEDED, message)
            return
        full = sorted(name for name, cpu_m in growth.items() if cpu_m > self._free_m(name))
        more = {number_by_name[name]: cpu_m - self._held.get(name, 0) for name, cpu_m in growth.items()}
        by_number = {number: cpu_m for number, cpu_m in more.items() if cpu_m > 0}
        if full:
            if all(growth[name] <= self._free_m(name) + self._landing_m(name) for name in full):
                self.postponed.append(job.id)
            elif not self._may_reclaim(job, by_number):
                self._deny(job, wish, DenialCode.INSUFFICIENT_CPU, self._shortage(full[0], growth[full[0]]))
            return
        if any(growth[name] > self._free_m(name) - self._leaving_m(name) for name in growth):
            self.postponed.append(job.id)
        else:
            self._quotas.count_growth(job, total_m)
            self._grant(job, wish)
        self._index.assign_growth(by_number)

    def _may_reclaim(self, job: Job, growth: Mapping[int, int]) -> bool:
        arrays = self._index.arrays
        if arrays is None or not job.request.gpus:
            return False
        if self._next_reclaim_s > self._now_s:
            return False  # too many were stopped lately
        stops = reclaimed_for_growth(arrays, job, growth, self._now_s)
        if stops:
            self.postponed.append(job.id)
            self.stops = () if job.id in self._patient else stops
        return bool(stops)

    def _grant(self, job: Job, wish: Wish) -> None:
        self.grants.append(Grant(job=job.id, attempt=job.attempt, sequence=wish.sequence, cores=wish.cores))

    def _deny(self, job: Job, wish: Wish, code: DenialCode, message: str) -> None:
        denial = Denial(
            job=job.id,
            attempt=job.attempt,
            sequence=wish.sequence,
            code=code,
            message=message,
            most_cores=self._most_cores(job, wish),
        )
        self.denials.append(denial)

    def _most_cores(self, job: Job, wish: Wish) -> int:
        """The most cores that every rank could have now, up to the wish; at least what it has."""
        for cores in range(wish.cores, job.cpus_per_replica, -1):
            growth = growth_by_node(job, cores)
            if self._quotas.growth_shortage(job, sum(growth.values())) is None and all(
                cpu_m <= self._free_m(name) for name, cpu_m in growth.items()
            ):
                return cores
        return job.cpus_per_replica

    def _shortage(self, name: str, needed_m: int) -> str:
        free = counted(max(0, self._free_m(name)) // 1000, "free core")
        return f"needs {counted(-(-needed_m // 1000), 'more core')} on node {name}, which has {free}"

    def _free_m(self, name: str) -> int:
        """Millicores that the job may take on a node, with those that are withheld for it; 0 if the node is gone."""
        number = self._index.capacity.number_by_name.get(name)
        if number is None:
            return 0
        arrays = self._index.arrays
        free = self._index.capacity.free(number) if arrays is None else arrays.free_for_growth(number)
        return free.cpu_m + self._held.get(name, 0)

    def _leaving_m(self, name: str) -> int:
        """Millicores that count as free on a node though stopped pods still use them."""
        pods = self._leaving.get(name)
        return pods.cpu_m if pods is not None else 0

    def _landing_m(self, name: str) -> int:
        pods = self._in_flight.get(name)
        return pods.cpu_m if pods is not None else 0
