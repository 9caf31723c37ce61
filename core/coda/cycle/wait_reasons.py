"""Why each waiting job does not start: code, sentence, numbers, holders.

The first cause that holds is the answer: first causes that no waiting changes, then those that have nothing to do with
capacity, then what is short. Thousands of jobs wait, of few classes, and little changes between cycles. So a reason is
found once for each class. A refusal stays the same object while its reason does, and readers compare by identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from types import MappingProxyType
from typing import Final, NamedTuple

from coda.cache.gang_class import ClassVerdict, GangClass, QueuedJob
from coda.cache.holdings import GpusOfOthers
from coda.cache.own_cores import lacks_own_cores
from coda.cache.quotas import QuotaLedger, beyond_quota
from coda.cache.world_index import WorldIndex
from coda.cycle.judging import COSTLY_TO_JUDGE, MANY_START, MANY_TO_JUDGE, Judging
from coda.model.decision import Refusal, WaitCode, WaitReason
from coda.model.job import Job, JobId, WriteTrouble
from coda.model.resources import CPU, GPUS
from coda.nodes.eligibility import Exclusion, reason_without_match, with_claims
from coda.nodes.locality import LevelHold, hold_text
from coda.nodes.node_search import RankClass
from coda.nodes.shortfall import Shortfall, never_within_text, reason_from_shortfall
from coda.promises import PromiseHold, promise_text
from coda.wording import amount_text, amounts_text, counted, listed, numbers_of, plural

EDITED: Final = WaitReason(
    code=WaitCode.EDITED, message="its spec was edited, and the operator has not accepted it yet"
)

UNWRITABLE: Final[Mapping[WriteTrouble, WaitReason]] = {
    WriteTrouble.REFUSED: WaitReason(
        code=WaitCode.STATUS_UNWRITABLE,
        message="the API server refuses to store its placement (see its events); the next try comes after a pause",
    ),
    WriteTrouble.UNANSWERED: WaitReason(
        code=WaitCode.STATUS_UNWRITABLE,
        message="the API server gives no answer when its placement is written; the next try comes after a pause",
    ),
    WriteTrouble.OVERTAKEN: WaitReason(
        code=WaitCode.CHANGED_MEANWHILE,
        message="it is changed again and again before its placement is written; the next try comes after a pause",
    ),
    WriteTrouble.SLOW: WaitReason(
        code=WaitCode.STATUS_WRITE_SLOW,
        message="the API server takes long to store what is written to it or to its namespace; the next try comes soon",
    ),
}

HELD_BY_POLICY: Final = WaitReason(
    code=WaitCode.HELD_BY_POLICY, message="enough is free now, but the policy keeps it for jobs that go first"
)

_LATE_S: Final = 5.0  # a reason that is older says that it is


def _kept_for(job: JobId) -> WaitReason:
    message = "enough is free now, but nodes are kept for a job that has waited too long, and this one may end too late"
    return WaitReason(code=WaitCode.HELD_BY_POLICY, message=message, holders=(job,))


def refusals_of(
    index: WorldIndex,
    quotas: QuotaLedger,
    now_s: float,
    count: int | None,
    judging: Judging,
    *,
    hold: PromiseHold,
    own: Mapping[JobId, WaitReason] = MappingProxyType({}),
    notes: Mapping[GangClass, str] = MappingProxyType({}),
) -> tuple[Refusal, ...]:
    """Return why each job that does not start in this cycle waits; with `count`, for that many, in order.

    `hold`: the nodes that are kept for promised jobs. `own`: reasons of single jobs, instead of what is short.
    `notes`: what the reasons of single classes say besides."""
    if count == 0:
        return ()
    finder = _ReasonFinder(index, quotas, now_s, hold, own, notes, in_turns=judging.many_cpu_jobs_start)
    started = index.started()
    queued_jobs = index.queue.without(started) if started else index.queue.queued_jobs
    if count is not None:
        queued_jobs = queued_jobs[:count]
        classes = list(dict.fromkeys(queued.gang_class for queued in queued_jobs))
    else:
        classes = list(index.queue.class_by_key.values())
    shared: dict[GangClass, WaitReason] = {}
    for gang_class in classes:
        finder.judge(gang_class, judging)
        shared[gang_class] = finder.shared_reason(gang_class)
    narrowed = {gang_class for gang_class in classes if finder.is_narrowed(gang_class)}
    special = {*own, *index.queue.holding_out(), *[kept.job.id for kept in hold.kept]}
    refusals: list[Refusal] = []
    for queued in queued_jobs:  # tens of thousands: what is usual comes first
        is_apart = queued.is_held or (bool(special) and queued.job.id in special)
        if is_apart or (narrowed and queued.gang_class in narrowed and queued.job.constraints.claims):
            refusals.append(finder.refusal(queued))
            continue
        reason, refusal = shared[queued.gang_class], queued.refusal
        if refusal is None or queued.reason is not reason:
            refusal = finder.told(queued, reason)
        refusals.append(refusal)
    return tuple(refusals)


class _Lack(NamedTuple):
    """What gangs lack, and the reason that says it."""

    shortfall: Shortfall
    reason: WaitReason


class _ReasonFinder:
    """The causes at the end of one cycle."""

    def __init__(
        self,
        index: WorldIndex,
        quotas: QuotaLedger,
        now_s: float,
        hold: PromiseHold,
        own: Mapping[JobId, WaitReason],
        notes: Mapping[GangClass, str],
        *,
        in_turns: bool,
    ) -> None:
        self._own = own
        self._in_turns = in_turns  # CPU jobs that fit start later
        self._notes = notes
        self._index = index
        self._search = index.search
        self._bottlenecks = index.bottlenecks
        self._holdings = index.holdings
        self._others = GpusOfOthers(index.capacity, index.holdings, index.world.in_flight)
        self._config = index.config
        self._quotas = quotas
        self._now_s = now_s
        self._hold = hold
        self._may_hold_back = index.policy.may_hold_back or bool(hold.kept)
        self._promise_texts = {kept.job.id: promise_text(kept.promise) for kept in hold.kept}
        self._troubles: Mapping[str, str] = {} if index.tenants is None else index.tenants.tree.troubles
        self._lacks: dict[tuple[RankClass, RankClass, int, bool, int], _Lack | None] = {}
        self._same: dict[tuple[int, int], tuple[bool, WaitReason, WaitReason]] = {}

    def judge(self, gang_class: GangClass, judging: Judging) -> None:
        """Find the reason that all jobs of a class share. If there is no time for it, the last one stays a while."""
        judging.ask(gang_class, self._judge, gang_class, None)
        verdict, left_out_s = gang_class.verdict, judging.left_out_s(gang_class)
        if gang_class.fault is not None:
            verdict.set_reason(gang_class.fault, comes_first=True)
        elif left_out_s is not None and (verdict.reason is None or left_out_s >= _LATE_S):
            reason = COSTLY_TO_JUDGE if judging.is_costly(gang_class) else MANY_TO_JUDGE
            verdict.set_reason(reason, comes_first=False)

    def _judge(self, gang_class: GangClass) -> None:
        job, verdict, rank_class = gang_class.job, gang_class.verdict, self._index.rank_class(gang_class)
        if verdict.nodes_version != self._index.nodes_version:
            verdict.nodes_version = self._index.nodes_version
            verdict.lasting = self._lasting(job, rank_class)
        found = verdict.lasting or self._unknown_level(job) or self._quota_exceeded(job) or self._tenant_is_full(job)
        if found is not None:
            verdict.set_reason(found, comes_first=True)
            return
        lack = self._lack(job, rank_class, self._index.rank_class_anywhere(gang_class), verdict)
        if lack is None:
            is_later = self._in_turns and not job.request.gpus
            held = MANY_START if is_later else lacks_own_cores(self._index.arrays, job) or self._held(gang_class)
            verdict.set_reason(held, comes_first=False)
        elif verdict.shortfall is not lack.shortfall and verdict.shortfall != lack.shortfall:
            verdict.set_reason(lack.reason, comes_first=False, shortfall=lack.shortfall)

    def _held(self, gang_class: GangClass) -> WaitReason:
        return _kept_for(kept[0].job.id) if (kept := self._hold.on(gang_class)) else HELD_BY_POLICY

    def _lack(self, job: Job, rank_class: RankClass, anywhere: RankClass, verdict: ClassVerdict) -> _Lack | None:
        """What gangs of so many such ranks lack; None if they fit, and are held back. Found once in a cycle.

        Classes differ by owner and more, which counts for nothing here. So most find the answer of another."""
        tenants = self._index.tenants
        over_quota = tenants is not None and tenants.borrows(job)
        key = (rank_class, anywhere, job.replicas, over_quota, 0 if tenants is None else tenants.lent_cpu_m(job))
        if key not in self._lacks:
            self._lacks[key] = self._new_lack(job, rank_class, anywhere, verdict, over_quota=over_quota)
        return self._lacks[key]

    def _new_lack(
        self, job: Job, rank_class: RankClass, anywhere: RankClass, verdict: ClassVerdict, *, over_quota: bool
    ) -> _Lack | None:
        if (self._may_hold_back or (self._in_turns and not job.request.gpus)) and _fits(job, rank_class):
            return None
        shortfall = self._shortfall(job, rank_class, anywhere)._replace(over_quota=over_quota)
        if (tenants := self._index.tenants) is not None and shortfall.short_of in (GPUS, CPU) and not over_quota:
            free = self._bottlenecks.free(anywhere, shortfall.short_of)
            shortfall = shortfall._replace(owner_text=tenants.owner_text(shortfall.short_of, job, free))
        shortfall = self._others.told(shortfall, anywhere, job.replicas)
        if verdict.shortfall == shortfall and verdict.reason is not None:
            return _Lack(shortfall, verdict.reason)
        return _Lack(shortfall, reason_from_shortfall(job, shortfall))

    def refusal(self, queued: QueuedJob) -> Refusal:
        """Return the refusal of a job that may have a reason of its own; the same object while the reason stays."""
        job, verdict = queued.job, queued.gang_class.verdict
        hold = self._index.queue.hold_of(job.id)
        reason = verdict.reason
        assert reason is not None
        if job.constraints.claims and self.is_narrowed(queued.gang_class):
            reason = with_claims(reason, job.constraints.claims)
        if not verdict.comes_first or reason.code is WaitCode.VIRTUAL_CLUSTER_FULL:  # what fills it may be given back
            reason = self._own.get(job.id, reason)
        if job.unreadable:
            reason = WaitReason(code=WaitCode.UNREADABLE, message=job.unreadable)
        elif job.edited:
            reason = EDITED
        elif job.unwritable is not None:
            reason = UNWRITABLE[job.unwritable]
        elif queued.is_held and not verdict.comes_first:
            reason = _rolling_back(job) or _backing_off(job, self._now_s) or reason
        if hold is not None:
            reason = self._while_it_prefers(queued, hold, reason)
        if job.id in self._promise_texts and not verdict.comes_first:
            reason = replace(reason, message=f"{reason.message}; {self._promise_texts[job.id]}")
        if (trouble := self._troubles.get(job.virtual_cluster)) is not None:
            reason = replace(reason, message=f"{reason.message}; {trouble}")
        return self.told(queued, reason)

    def is_narrowed(self, gang_class: GangClass) -> bool:
        """True if node affinity is among what keeps gangs of the class from nodes for good: volumes may be part of it.

        Claims are said of each job, and are not of its class: thousands of jobs with one each are still judged once."""
        reason = gang_class.verdict.reason
        if reason is None or reason.code not in (WaitCode.NO_MATCHING_NODE, WaitCode.NEVER_FITS):
            return False
        return self._index.rank_class(gang_class).eligible.excluded.get(Exclusion.AFFINITY, 0) > 0

    def shared_reason(self, gang_class: GangClass) -> WaitReason:
        """Return the reason of the jobs of a class that have none of their own, with what is to be said besides.

        Jobs of one class are of one tenant."""
        verdict = gang_class.verdict
        note = self._notes.get(gang_class) if self._notes and not verdict.comes_first else None
        trouble = self._troubles.get(gang_class.job.virtual_cluster)
        return verdict.with_texts(tuple([text for text in (note, trouble) if text is not None]))

    def told(self, queued: QueuedJob, reason: WaitReason) -> Refusal:
        """Return the refusal with this reason; the same object while the reason stays.

        Two reasons are compared once: thousands of jobs go from one to another."""
        refusal, before = queued.refusal, queued.reason
        queued.reason = reason
        if refusal is not None and before is not None:
            same = self._same.get((id(before), id(reason)))
            if same is None:  # with them: no others get their identities
                same = self._same[id(before), id(reason)] = (before == reason, before, reason)
            if same[0]:
                return refusal
        refusal = queued.refusal = Refusal(queued.job.id, queued.job.generation, reason)
        return refusal

    def _while_it_prefers(self, queued: QueuedJob, hold: LevelHold, reason: WaitReason) -> WaitReason:
        """The reason of a job that could have nodes, if it did not wait for some that are close together."""
        job, code = queued.job, reason.code
        if code is WaitCode.NEVER_FITS:
            rank_class = self._index.rank_class(queued.gang_class)
            is_apart = self._search.ranks_when_empty(rank_class, None) >= job.replicas
        else:
            is_apart = code is WaitCode.NO_DOMAIN_FITS
        if not is_apart:
            return reason
        message = f"{reason.message}; {hold_text(hold, self._config.spread_cost)}"
        return replace(reason, code=WaitCode.WAITS_FOR_LOCALITY, message=message)

    def _lasting(self, job: Job, rank_class: RankClass) -> WaitReason | None:
        """What no other job's end can change; avoided and cordoned nodes count as usable."""
        if not rank_class.eligible.matching:
            total = len(self._search.capacity.nodes)
            return reason_without_match(job.constraints, rank_class.eligible.excluded, total)
        ranks = self._search.ranks_when_empty(rank_class, rank_class.within)
        if ranks >= job.replicas:
            return None
        matching = len(rank_class.eligible.matching)
        nodes = f"the {matching} matching nodes hold" if matching > 1 else "the only matching node holds"
        each = amounts_text(rank_class.request)
        if self._search.ranks_when_empty(rank_class, None) == 0:
            sizes = (self._search.capacity.nodes[number].allocatable for number in sorted(rank_class.eligible.matching))
            largest = max(sizes, key=lambda size: (size.gpus, size.cpu_m, size.memory_bytes))
            largest = largest.of_kinds(rank_class.request)
            which = "the largest" if matching > 1 else "it"
            message = f"a rank needs {each}; even empty, {nodes} none: {which} has {amounts_text(largest)}"
        elif rank_class.within is None:
            message = f"needs {counted(job.replicas, 'rank')} of {each} each; even empty, {nodes} only {ranks}"
        else:
            able, labelled = (self._search.nodes_when_empty(rank_class, level) for level in (None, rank_class.within))
            label = self._config.levels[rank_class.within].label
            message = never_within_text(job, ranks, label, able, able - labelled)
        numbers = numbers_of(
            ranks=job.replicas, ranks_when_empty=ranks, nodes_matching=len(rank_class.eligible.matching)
        )
        return WaitReason(code=WaitCode.NEVER_FITS, message=message, numbers=numbers)

    def _quota_exceeded(self, job: Job) -> WaitReason | None:
        """The first ResourceQuota that leaves too little for the whole gang."""
        short = self._quotas.shortage(job)
        reason = None if short is None else beyond_quota(job, self._quotas)
        if short is None or reason is None or short.is_whole:
            return reason
        return replace(reason, holders=self._holdings.of_quota(job.namespace, short.key, short.scopes))

    def _tenant_is_full(self, job: Job) -> WaitReason | None:
        """A virtual cluster of its path may not borrow, and leaves too little for the whole gang."""
        if (tenants := self._index.tenants) is None or (short := tenants.shortage(job)) is None:
            return None
        kind = GPUS if job.request.gpus else CPU
        needed, left = amount_text(kind, short.needed), amount_text(kind, short.left)
        below = "" if short.virtual_cluster == job.virtual_cluster else f" and {job.virtual_cluster} is a part of"
        quota = f"the quota of VirtualCluster {short.virtual_cluster}, which may not borrow{below},"
        code, numbers = WaitCode.VIRTUAL_CLUSTER_FULL, numbers_of(needed=short.needed, left=short.left)
        if short.is_whole:
            all_of = f"all of {quota} is {amount_text(kind, short.limit)}"
            message = f"the whole gang needs {needed}, and {all_of}: ask for fewer {plural(kind)} or for a larger quota"
            return WaitReason(code=code, message=message, numbers=numbers)
        message = f"the whole gang needs {needed}, and {quota} leaves {left}"
        holders = self._holdings.of_tenants(tenants.tree.below(short.virtual_cluster), kind)
        return WaitReason(code=code, message=message, numbers=numbers, holders=holders)

    def _unknown_level(self, job: Job) -> WaitReason | None:
        """A required level that is not configured."""
        if job.within is None or self._config.level_index(job.within) is not None:
            return None
        names = listed(level.name for level in self._config.levels) or "none"
        message = f"locality names the level {job.within!r}, which is not configured here; known: {names}"
        return WaitReason(code=WaitCode.UNKNOWN_LEVEL, message=message)

    def _shortfall(self, job: Job, rank_class: RankClass, anywhere: RankClass) -> Shortfall:
        """What is short: capacity in one domain, or, `anywhere`, capacity at all."""
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
        short_of = name or (sides[0].limits[0].name if sides else "")
        return Shortfall(
            short_of=short_of,
            enough_of_it=scattered
            or (name is None and bool(short_of) and self._bottlenecks.is_enough(anywhere, short_of, job.replicas)),
            name=name,
            scattered=scattered,
            sides=sides,
            ranks=anywhere.candidates.ranks,
            nodes=anywhere.candidates.nodes,
            matching=len(anywhere.eligible.matching),
            blocked=len(anywhere.eligible.matching) - len(anywhere.eligible.accepting),
            joining=anywhere.eligible.joining(self._search.capacity.nodes),
            avoided=len(anywhere.eligible.accepting) - len(anywhere.groups.amount_by_node),
            stuck=len(arrays.stuck) if (arrays := self._index.arrays) is not None and not job.request.gpus else 0,
            holders=self._holdings.on_nodes(anywhere.eligible, name or (GPUS if anywhere.request.gpus else CPU)),
        )


def _fits(job: Job, rank_class: RankClass) -> bool:
    rank_class.candidates.refresh()
    return rank_class.candidates.fits(job.replicas, rank_class.within)


def _rolling_back(job: Job) -> WaitReason | None:
    if not job.leftovers and not job.bound and not job.unbound:
        return None
    message = "pods of a dropped placement are still being deleted"
    return WaitReason(code=WaitCode.ROLLING_BACK, message=message)


def _backing_off(job: Job, now_s: float) -> WaitReason | None:
    if job.not_before_s <= now_s:
        return None
    ended = f"attempt {job.attempt - 1} ended early" if job.attempt > 1 else "the last launch failed"
    numbers = numbers_of(attempt=job.attempt, not_before_s=ceil(job.not_before_s))
    return WaitReason(code=WaitCode.BACKING_OFF, message=f"{ended}; the next one starts after a pause", numbers=numbers)


def held_by_itself(job: Job, now_s: float) -> WaitReason | None:
    """Return why a waiting job must not be started now whatever is free; None: it may."""
    if job.unreadable:
        return WaitReason(code=WaitCode.UNREADABLE, message=job.unreadable)
    if job.edited:
        return EDITED
    if job.unwritable is not None:
        return UNWRITABLE[job.unwritable]
    return _rolling_back(job) or _backing_off(job, now_s)
