"""Breaches of the rules of tenants, which only a history shows: (h), on each level of the tree of virtual clusters.

All jobs come by one watch, in the order in which they were written. So when a write of the planner is seen, whatever it
had seen of other jobs is known too. It may have seen less: what a job held in the last seconds still counts where that
excuses it, and nobody is accused soon after the tree has changed. What one decision starts and stops is written in any
order: a start that was decided before a stop was seen counts for it, too. Jobs that were not followed without a gap
only count. Only GPUs of TrainingJobs are counted, from their placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from coda.model import FINISHED, Phase
from coda.model.job import StopCause
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GPU
from coda_kube.quotas.virtual_clusters import VirtualClusters
from coda_lab.checker.objects import JobSeen
from coda_lab.checker.report import Breach, Invariant

EXCUSED_S: Final = 10.0  # our choice: a planner that is behind by more is no planner
SETTLED_S: Final = 5.0  # our choice: by then all writes of a decision were tried, and those that failed once more
_ENDED: Final = FINISHED | {Phase.RESTARTING, Phase.SUSPENDED}


class _Held(NamedTuple):
    job: str
    tenant: str
    gpus: int
    plan_id: str
    is_stopped: bool


@dataclass(slots=True)
class _Doubt:
    """A stop for which seats hold too little, unless starts of the same decision are still to be seen."""

    breach: Breach
    lacking: dict[str, int]  # GPUs, by seat
    seen_s: float


class TenantWatch:
    """Follows what each tenant holds. `see_job` gives the breach that a new state of a job is, `settled` those that no
    later state explains."""

    def __init__(self) -> None:
        self._tenants = VirtualClusters()
        self._held: dict[str, _Held] = {}  # by uid of the job
        self._left: list[tuple[float, str, int]] = []  # when GPUs of a tenant were given up
        self._changed_s = 0.0  # when the tree changed
        self._doubts: list[_Doubt] = []

    def put(self, item: Json, now_s: float) -> None:
        """A VirtualCluster came or changed."""
        before = self._tenants.get(item["metadata"]["name"])
        changed = self._tenants.note(None, item)
        if changed or before != self._tenants.get(item["metadata"]["name"]):
            self._changed_s = now_s

    def drop(self, name: str, now_s: float) -> None:
        """A VirtualCluster is gone."""
        self._tenants.note({"metadata": {"name": name}}, None)
        self._changed_s = now_s

    def names(self) -> list[str]:
        """The VirtualClusters that are known."""
        return list(self._tenants.by_name())

    def see_job(self, job: JobSeen, now_s: float, *, gap: bool) -> Breach | None:
        """Take in one state of a job. `gap`: states between it and the one before may be missing."""
        before, after = self._held.get(job.uid), self._held_by(job)
        if before is not None and (after is None or (after.is_stopped and not before.is_stopped)):
            self._left.append((now_s, before.tenant, before.gpus))
        if after is None:
            self._held.pop(job.uid, None)
            return None
        self._held[job.uid] = after
        if gap or not len(self._tenants) or now_s - self._changed_s < EXCUSED_S:
            return None
        if after.is_stopped and before is not None and not before.is_stopped and job.stop_cause is StopCause.FAIR_SHARE:
            self._stopped_within_its_own(job, after, now_s)
        elif not after.is_stopped and (before is None or before.plan_id != after.plan_id):
            self._explain(after, plan_s=job.current_plan.committed_s if job.current_plan is not None else now_s)
            return self._beyond_a_limit(job, after, now_s)
        return None

    def settled(self, now_s: float) -> list[Breach]:
        """Return the stops that nothing has explained by now, each once."""
        due = [doubt for doubt in self._doubts if doubt.seen_s + SETTLED_S <= now_s]
        self._doubts = [doubt for doubt in self._doubts if doubt.seen_s + SETTLED_S > now_s]
        return [doubt.breach for doubt in due]

    def forget_job(self, uid: str, now_s: float) -> None:
        """The job is gone."""
        before = self._held.pop(uid, None)
        if before is not None and not before.is_stopped:
            self._left.append((now_s, before.tenant, before.gpus))

    def _held_by(self, job: JobSeen) -> _Held | None:
        plan = job.current_plan
        if plan is None or job.deleting or job.suspended or job.phase in _ENDED or not job.has_plan_that_holds:
            return None
        gpus = len(plan.nodes) * job.rank_request.get(GPU, 0) // 1000
        tenant = self._tenants.tenant_of(job.name.split("/", 1)[0])
        return _Held(job.name, tenant, gpus, plan.plan_id, job.stop_cause is not None)

    def _explain(self, started: _Held, *, plan_s: float) -> None:
        """`plan_s`: when it was decided. What was decided after a stop was seen explains nothing."""
        path = self._tenants.tree.path(started.tenant)
        for doubt in [doubt for doubt in self._doubts if plan_s <= doubt.seen_s]:
            doubt.lacking = {seat: gpus - started.gpus * (seat in path) for seat, gpus in doubt.lacking.items()}
        self._doubts = [doubt for doubt in self._doubts if any(gpus > 0 for gpus in doubt.lacking.values())]

    def _stopped_within_its_own(self, job: JobSeen, held: _Held, now_s: float) -> None:
        """No gang is stopped for an owner while a level below what both have in common holds no more than its own."""
        self._left = [one for one in self._left if now_s - one[0] < EXCUSED_S]
        tree = self._tenants.tree
        path = tree.path(held.tenant)
        other = tree.path(self._tenants.tenant_of(job.stopped_by.split("/", 1)[0]))
        common = len([1 for mine, its in zip(path, other, strict=False) if mine == its])
        lacking: dict[str, int] = {}
        sentence = ""
        for seat in path[common:]:
            left = sum(gpus for _, tenant, gpus in self._left if seat in tree.path(tenant))
            gpus = self._gpus_of(seat) + left
            if gpus <= tree.seat(seat).own_gpus:
                whose = ", ".join([f"{one.job} {one.gpus}" for one in self._of(seat)] + [f"left lately {left}"])
                said = f"holds {gpus} GPUs with it ({whose}), and owns {tree.seat(seat).own_gpus}"
                sentence = sentence or f"job {job.name} is stopped for {job.stopped_by}, but {seat} {said}"
                lacking[seat] = tree.seat(seat).own_gpus + 1 - gpus
        if lacking:
            self._doubts.append(_Doubt(_breach(job, sentence, now_s), lacking, now_s))

    def _beyond_a_limit(self, job: JobSeen, held: _Held, now_s: float) -> Breach | None:
        """Nothing starts beyond the quota of a tenant that may not borrow, on any level."""
        for seat in self._tenants.tree.path(held.tenant):
            limit, gpus = self._tenants.tree.seat(seat).limit_gpus, self._gpus_of(seat)
            if limit is not None and held.gpus and gpus > limit:
                said = f"holds {gpus} GPUs with it, and may not hold more than {limit}"
                return _breach(job, f"job {job.name} has a placement, but {seat} {said}", now_s)
        return None

    def _gpus_of(self, seat: str) -> int:
        return sum(one.gpus for one in self._of(seat))

    def _of(self, seat: str) -> list[_Held]:
        """What the jobs of a seat hold that were not told to stop. O(jobs with a placement)."""
        path = self._tenants.tree.path
        return [one for one in self._held.values() if not one.is_stopped and seat in path(one.tenant)]


def _breach(job: JobSeen, sentence: str, now_s: float) -> Breach:
    return Breach(
        invariant=Invariant.TENANT_RULE_BROKEN, time_s=now_s, objects=(f"TrainingJob/{job.name}",), sentence=sentence
    )
