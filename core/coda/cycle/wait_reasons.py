"""Why a waiting job does not start: code, sentence, numbers, holders. What must not live here: choices of nodes.

The first cause that holds is the answer: those that no waiting mends come first, then those that wait for something
else than room, then what is short. The order in which they are asked for is `explaining`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Final, NamedTuple

from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import WorldIndex
from coda.model.constraints import NodeConstraints
from coda.model.decision import WaitCode, WaitReason
from coda.model.job import Job, JobId
from coda.model.resources import CPU, GPUS, MEMORY, PODS, Resources
from coda.nodes.bottleneck import Limit, Side
from coda.nodes.eligibility import Exclusion
from coda.nodes.node_search import RankClass
from coda.wording import (
    amounts_text,
    counted,
    free_text,
    listed,
    numbers_of,
    plural,
    quota_text,
    shortage_text,
)

_CODE_BY_RESOURCE: Final[Mapping[str, WaitCode]] = {
    GPUS: WaitCode.INSUFFICIENT_GPUS,
    CPU: WaitCode.INSUFFICIENT_CPU,
    MEMORY: WaitCode.INSUFFICIENT_MEMORY,
    PODS: WaitCode.INSUFFICIENT_PODS,
}


class Shortfall(NamedTuple):
    """What a gang lacks: equal values, equal reasons. `name`: the one resource in the way, if one is."""

    holders: tuple[JobId, ...]
    most_in_one_domain: int | None = None  # ranks, where enough is free but in no domain; else None, and what follows
    name: str | None = None
    scattered: bool = False  # enough of it is free in all
    sides: tuple[Side, ...] = ()  # which nodes lack what, where more than one resource is short or another one would do
    ranks: int = 0  # that there is room for
    nodes: int = 0  # with room for a rank
    matching: int = 0  # nodes in all
    blocked: int = 0  # of these
    avoided: int = 0


EDITED: Final = WaitReason(code=WaitCode.EDITED, message="its spec was edited; waits for the operator to accept that")

HELD_BY_POLICY: Final = WaitReason(
    code=WaitCode.HELD_BY_POLICY, message="there is room now, and the policy keeps it for jobs that go first"
)


def reserved_for_job(job: JobId) -> WaitReason:
    """Where nodes are kept for a job that waited too long."""
    message = f"there is room now, and it is kept for jobs that go first: {job} has waited too long to be overtaken"
    return WaitReason(code=WaitCode.HELD_BY_POLICY, message=message, holders=(job,))


class ReasonFinder:
    """The causes, one by one, at the end of one round. Equal gangs have equal reasons, but for `held_back`."""

    def __init__(self, index: WorldIndex, quotas: QuotaLedger, now_s: float) -> None:
        self._search = index.search
        self._bottlenecks = index.bottlenecks
        self._holdings = index.holdings
        self._config = index.config
        self._quotas = quotas
        self._now_s = now_s

    def lasting(self, job: Job, rank_class: RankClass) -> WaitReason | None:
        """What no other job's end can mend; avoided and cordoned nodes count as there."""
        if not rank_class.eligible.matching:
            return self._no_matching_node(job.constraints, rank_class)
        ranks = self._search.ranks_when_empty(rank_class, rank_class.within)
        if ranks >= job.replicas:
            return None
        nodes = counted(len(rank_class.eligible.matching), "matching node")
        each = amounts_text(rank_class.request)
        if self._search.ranks_when_empty(rank_class, None) == 0:
            sizes = (self._search.capacity.nodes[number].allocatable for number in sorted(rank_class.eligible.matching))
            largest = max(sizes, key=lambda size: (size.gpus, size.cpu_m, size.memory_bytes))
            largest = _of_the_same_kinds(largest, rank_class.request)
            message = (
                f"a rank needs {each}; even empty, none of {nodes} holds it: the largest has {amounts_text(largest)}"
            )
        elif rank_class.within is None:
            message = f"needs {counted(job.replicas, 'rank')} of {each} each; even empty, {nodes} hold only {ranks}"
        else:
            gang = f"needs all {counted(job.replicas, 'rank')} of {each} each within one {job.within}"
            message = f"{gang}; even empty, no {job.within} holds more than {ranks}"
        numbers = numbers_of(
            ranks=job.replicas, ranks_when_empty=ranks, nodes_matching=len(rank_class.eligible.matching)
        )
        return WaitReason(code=WaitCode.NEVER_FITS, message=message, numbers=numbers)

    def _no_matching_node(self, constraints: NodeConstraints, rank_class: RankClass) -> WaitReason:
        counts = {cause: rank_class.eligible.excluded.get(cause, 0) for cause in Exclusion}
        selector = ", ".join(f"{key}={value}" for key, value in sorted(constraints.selector.items()))
        clauses = {
            Exclusion.SELECTOR: f"without the labels of its nodeSelector ({selector})",
            Exclusion.AFFINITY: "outside its required node affinity",
            Exclusion.TAINT: "with a taint it does not tolerate",
        }
        parts = [f"{counts[cause]} {clause}" for cause, clause in clauses.items() if counts[cause]]
        total = len(self._search.capacity.nodes)
        message = f"none of {counted(total, 'node')} accepts its pods: {listed(parts)}" if total else "there is no node"
        numbers = numbers_of(nodes=total, **{f"excluded_by_{cause.value}": count for cause, count in counts.items()})
        return WaitReason(code=WaitCode.NO_MATCHING_NODE, message=message, numbers=numbers)

    def held_back(self, job: Job) -> WaitReason | None:
        """What this one job waits for, though there may be room."""
        return self._rolling_back(job) or self._backing_off(job)

    def quota_exceeded(self, job: Job) -> WaitReason | None:
        """The first ResourceQuota that leaves too little for the whole gang."""
        short = self._quotas.shortage(job)
        if short is None:
            return None
        needed, left = quota_text(short.key, short.needed_milli), quota_text(short.key, max(0, short.left_milli))
        return WaitReason(
            code=WaitCode.QUOTA_EXCEEDED,
            message=f"the whole gang needs {needed} of {short.key}, and ResourceQuota {short.quota} leaves {left}",
            numbers=numbers_of(needed=ceil(short.needed_milli / 1000), left=short.left_milli // 1000),
            holders=self._holdings.of_quota(job.namespace, short.key),
        )

    def unknown_level(self, job: Job) -> WaitReason | None:
        """A level that is required and that nobody configured."""
        if job.within is None or self._config.level_index(job.within) is not None:
            return None
        names = listed(level.name for level in self._config.levels) or "none"
        message = f"locality names the level {job.within!r}, which is not configured here; known: {names}"
        return WaitReason(code=WaitCode.UNKNOWN_LEVEL, message=message)

    def _rolling_back(self, job: Job) -> WaitReason | None:
        if not job.bound and not job.unbound:
            return None
        message = "pods of a plan that was dropped are still going away"
        return WaitReason(code=WaitCode.ROLLING_BACK, message=message)

    def _backing_off(self, job: Job) -> WaitReason | None:
        if job.not_before_s <= self._now_s:
            return None
        ended = f"attempt {job.attempt - 1} ended early" if job.attempt > 1 else "the last launch did not work"
        numbers = numbers_of(attempt=job.attempt, not_before_s=ceil(job.not_before_s))
        return WaitReason(
            code=WaitCode.BACKING_OFF, message=f"{ended}; the next try waits out a pause", numbers=numbers
        )

    def has_room(self, job: Job, rank_class: RankClass) -> bool:
        """True when nothing but the policy keeps the gang from starting."""
        rank_class.candidates.refresh()
        return rank_class.candidates.place(job.replicas, rank_class.within) is not None

    def shortfall(self, job: Job, rank_class: RankClass, anywhere: RankClass) -> Shortfall:
        """What is short: room in one domain, or, `anywhere`, room at all."""
        rank_class.candidates.refresh()
        anywhere.candidates.refresh()
        if rank_class.within is not None and anywhere.candidates.ranks >= job.replicas:
            most = rank_class.candidates.most_ranks_in_one_domain(rank_class.within)
            holders = self._holdings.on_nodes(rank_class.eligible, GPUS if rank_class.request.gpus else CPU)
            return Shortfall(most_in_one_domain=most, holders=holders)
        name = self._bottlenecks.lacking(anywhere, job.replicas)
        scattered = name is not None and self._bottlenecks.is_enough(anywhere, name, job.replicas)
        if name is None:
            sides = self._bottlenecks.shortages(anywhere, job.replicas)
        else:
            sides = self._bottlenecks.alternatives(anywhere, job.replicas, name) if scattered else ()
        return Shortfall(
            name=name,
            scattered=scattered,
            sides=sides,
            ranks=anywhere.candidates.ranks,
            nodes=anywhere.candidates.nodes,
            matching=len(anywhere.eligible.matching),
            blocked=len(anywhere.eligible.matching) - len(anywhere.eligible.accepting),
            avoided=len(anywhere.avoided()),
            holders=self._holdings.on_nodes(anywhere.eligible, name or (GPUS if anywhere.request.gpus else CPU)),
        )


def reason_from_shortfall(job: Job, shortfall: Shortfall) -> WaitReason:
    """The words for what is short."""
    return _insufficient(job, shortfall) if shortfall.most_in_one_domain is None else _no_domain_fits(job, shortfall)


def _no_domain_fits(job: Job, shortfall: Shortfall) -> WaitReason:
    most = shortfall.most_in_one_domain or 0
    gang = f"needs all {counted(job.replicas, 'rank')} of {amounts_text(job.request)} each within one {job.within}"
    return WaitReason(
        code=WaitCode.NO_DOMAIN_FITS,
        message=f"{gang}; enough is free in all, but no {job.within} has room for more than {most} of them now",
        numbers=numbers_of(ranks=job.replicas, ranks_in_one_domain=most),
        holders=shortfall.holders,
    )


def _insufficient(job: Job, shortfall: Shortfall) -> WaitReason:
    name = shortfall.name
    clauses = [_want_text(job, shortfall.nodes, shortfall.matching, shortfall.ranks)]
    kind = "usable" if shortfall.blocked or shortfall.avoided else "matching"
    if shortfall.sides:
        clauses += _sides_texts(shortfall.sides, kind)
    elif name is not None:
        clauses.append(shortage_text(name, scattered=shortfall.scattered))
    elif kind == "matching":
        clauses.append("enough of each resource is free, but not on the same nodes")
    if shortfall.blocked:
        clauses.append(f"{counted(shortfall.blocked, 'node')} cordoned, not ready or under pressure")
    if shortfall.avoided:
        clauses.append(f"{counted(shortfall.avoided, 'node')} avoided after a failed attempt")
    if not shortfall.holders and kind == "matching" and name is not None:
        clauses.append("pods outside Coda hold the rest")
    return WaitReason(
        code=_CODE_BY_RESOURCE.get(name or "", WaitCode.INSUFFICIENT_RESOURCES),
        message="; ".join(clauses),
        numbers=numbers_of(
            ranks=job.replicas,
            ranks_with_room=shortfall.ranks,
            nodes_with_room=shortfall.nodes,
            nodes_matching=shortfall.matching,
        ),
        holders=shortfall.holders,
    )


def _sides_texts(sides: tuple[Side, ...], kind: str) -> list[str]:
    """Which nodes lack what. `kind` of nodes: "matching" or "usable"."""
    found = []
    for side in sides:
        if side.enough_of is not None:
            lacking = listed(_limit_text(limit) for limit in side.limits)
            found.append(f"{kind} nodes with enough {plural(side.enough_of)} have {lacking}")
            continue
        on_one = [_limit_text(limit) for limit in side.limits if not limit.ranks]
        together = [_limit_text(limit) for limit in side.limits if limit.ranks]
        found += [f"every {kind} node has {listed(on_one)}"] if on_one else []
        found += [f"all {kind} nodes together have {listed(together)}"] if together else []
    return found


def _limit_text(limit: Limit) -> str:
    if limit.ranks:
        return f"enough {plural(limit.name)} for only {counted(limit.ranks, 'rank')}"
    return f"{'at most ' if limit.most else ''}{free_text(limit.name, limit.most)}"


def _want_text(job: Job, nodes: int, matching: int, ranks: int) -> str:
    each = amounts_text(job.request)
    of_all = counted(matching, "matching node")
    if job.replicas == 1:
        return f"needs {each} free on one node; none of {of_all} has that now"
    has = "have" if nodes > 1 else "has"
    capacity = f"{nodes or 'none'} of {of_all} {has} room now" + (f", for {counted(ranks, 'rank')}" if nodes else "")
    return f"needs {counted(job.replicas, 'rank')} of {each} each; {capacity}"


def _of_the_same_kinds(size: Resources, asked: Resources) -> Resources:
    """A node's size without the resources that were not asked for."""
    return replace(size, other={name: amount for name, amount in size.other.items() if asked.other.get(name)})
