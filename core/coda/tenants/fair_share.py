"""Whose gangs stop so that a job starts on what is its tenant's own: the rules, level by level.

Two tenants are compared below the level that they have in common. The job's tenant is owed GPUs if, with the job, each
of its levels from there down holds no more than its own. A gang may stop for it while each level of its tenant from
there down holds more than its own. So a team takes back first of all from its own organisation; one organisation takes
from another only if the other holds too much as a whole; and nobody within its own on each level is ever stopped.

No two jobs stop each other in turn: who started on its own stays within its own, until its tenant borrows again.
Source: Philly (ATC 2019, section 2.3) for the threshold; Kueue's reclaim within cohorts; the rest is our choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from coda.model.job import Job
from coda.model.live_placement import live_placement
from coda.policy.arrays import can_stop
from coda.policy.config import FairShareConfig
from coda.tenants.ledger import TenantLedger

_AHEAD_S: Final = 60.0  # so far one clock may be ahead of another

Runner = tuple[Job, tuple[str, ...]]
"""A job that holds nodes, one entry per rank."""


class Takings:
    """What is taken from tenants for one job, gang by gang.

    `owns`: only on behalf of what is the tenant's own; else other rules say who is stopped, and this only protects
    tenants that hold no more than their own."""

    def __init__(self, ledger: TenantLedger, job: Job, *, owns: bool) -> None:
        self._ledger = ledger
        self._path = ledger.tree.path(job.virtual_cluster)
        self._tenant = job.virtual_cluster
        self._owns = owns
        self._taken: dict[str, int] = {}  # GPUs, by seat
        self._beyond = _levels_beyond(ledger, job, self._path) if owns else 0  # the job is owed nothing above this one
        self._lacking = ledger.lacking(job) if owns else {}  # GPUs, by seat with a limit that leaves too little

    @property
    def is_owed(self) -> bool:
        """True if the job's tenant, with the job, holds no more than its own: on its own level at least."""
        return self._beyond < len(self._path)

    def may_take(self, runner: Job) -> bool:
        """True if this gang may be stopped for the job, after those taken so far. O(levels)."""
        if runner.virtual_cluster == self._tenant:
            return not self._owns
        path = self._ledger.tree.path(runner.virtual_cluster)
        common = 0
        for mine, its in zip(self._path, path, strict=False):
            if mine != its:
                break
            common += 1
        return common >= self._beyond and all(self._is_over(seat) for seat in path[common:])

    def take(self, runner: Job) -> None:
        """This gang stops."""
        gpus = runner.request.gpus * runner.replicas
        for seat in self._ledger.tree.path(runner.virtual_cluster):
            self._taken[seat] = self._taken.get(seat, 0) + gpus

    def give_back(self, runner: Job) -> None:
        """This gang need not stop after all."""
        for seat in self._ledger.tree.path(runner.virtual_cluster):
            self._taken[seat] -= runner.request.gpus * runner.replicas

    def respects_limits(self) -> bool:
        """True if no limit of the job's tenant is in its way once those taken are gone. O(levels)."""
        return all(self._taken.get(seat, 0) >= gpus for seat, gpus in self._lacking.items())

    def _is_over(self, seat: str) -> bool:
        held = self._ledger.gpus_kept(seat) - self._taken.get(seat, 0)
        return held > self._ledger.tree.seat(seat).own_gpus


def _levels_beyond(ledger: TenantLedger, job: Job, path: tuple[str, ...]) -> int:
    """How many levels, from the top, reach down to the last one that holds more than its own with the job."""
    asked = job.request.gpus * job.replicas
    for number in range(len(path), 0, -1):
        seat = path[number - 1]
        if ledger.gpus_held(seat) + asked > ledger.tree.seat(seat).own_gpus:
            return number
    return 0


class LentGangs(NamedTuple):
    """Gangs that hold lent GPUs, in the order in which they stop."""

    ready: list[Runner]
    later: list[tuple[float, Job, tuple[str, ...]]]  # spared until then, for they have not run for the minimum time


def lent_gangs(ledger: TenantLedger, holders: Iterable[Runner], config: FairShareConfig, now_s: float) -> LentGangs:
    """Return the gangs that might stop for somebody: of tenants that hold more than their own.

    First those that resume, since less work is lost, then the newest (ties: by id). When a tenant came to own less
    counts as a start: else a typo, or a file that is applied before another, would stop gangs that ran within their
    own. O(jobs that hold nodes x levels)."""
    lost_s_by_tenant: dict[str, float | None] = {}  # None: it holds no more than its own
    ready: list[tuple[bool, float, str, Job, tuple[str, ...]]] = []
    later: list[tuple[float, str, Job, tuple[str, ...]]] = []
    for job, nodes in holders:
        placement = live_placement(job)
        if not job.request.gpus or placement is None or not can_stop(job):
            continue
        if config.only_resumable and not job.resumable:
            continue
        name = job.virtual_cluster
        if name not in lost_s_by_tenant:
            lost_s_by_tenant[name] = _lost_s(ledger, name, now_s)
        lost_s = lost_s_by_tenant[name]
        if lost_s is None:
            continue
        spared_until_s = max(placement.committed_s, lost_s) + config.min_runtime_s
        if spared_until_s > now_s:
            later.append((spared_until_s, job.id, job, nodes))
        else:
            ready.append((not job.resumable, -placement.committed_s, job.id, job, nodes))
    ready.sort(key=lambda one: one[:3])
    later.sort(key=lambda one: one[:2])
    return LentGangs(
        [(job, nodes) for _, _, _, job, nodes in ready],
        [(until_s, job, nodes) for until_s, _, job, nodes in later],
    )


def _lost_s(ledger: TenantLedger, tenant: str, now_s: float) -> float | None:
    """When a tenant, or one above it, last came to own less; None if it holds no more than its own.

    A time well ahead is of a clock that was set back since: it counts for nothing, else it would spare until then."""
    path, tree = ledger.tree.path(tenant), ledger.tree
    if ledger.gpus_kept(path[-1]) <= tree.seat(path[-1]).own_gpus:
        return None
    times_s = [tree.seat(seat).tenant.lost_s for seat in path]
    return max([at_s for at_s in times_s if at_s <= now_s + _AHEAD_S], default=-inf)
