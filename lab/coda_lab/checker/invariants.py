"""The invariants that one moment of the cluster shows, as pure checks: a view in, suspicions out.

A suspicion says how long its state may last and which part must end it. Clocks and memory are in `suspicion_clock`; (f)
and the rewriting half of (g) are in `history`. Nothing here waits or reads a clock.

Not judged, because the API server does not show it: whether a waiting job's reason is still the right one. Judged: that
a reason comes in time and is not rewritten without need. Its code, numbers and holders are believed.
"""

from __future__ import annotations

from typing import Final

from coda.model import FINISHED, Phase
from coda_lab.checker.capacity import Fitted, loads_on, overloads
from coda_lab.checker.objects import JobSeen, PlanSeen, PodSeen
from coda_lab.checker.report import Invariant
from coda_lab.checker.suspicion import SETTLE_S, Part, Suspicion
from coda_lab.checker.view import Scope, View

OLD_ATTEMPT_S: Final = 2.0  # design (e): within 2 s everything is being deleted; the same for other left-over pods
ROLL_BACK_S: Final = 5.0  # our choice: a suspend, deletion or end is seen first, then all pods of the gang are deleted
GONE_S: Final = 10.0  # our choice: pods of a job that vanished wait for Kubernetes' garbage collector
DEADLINE_S: Final = 2.0  # design (e)
REASON_S: Final = 5.0  # design (g)
UNSAID: Final = "status.pending does not say why"  # tells lateness from the other breach of (g)


def suspicions_of_job(view: View, uid: str) -> list[Suspicion]:
    """Check (c), (d), (e) and (g) for one job and the pods that claim to be its. None for a job the snapshot is unsure
    of.
    """
    if uid in view.unsteady:
        return []
    job = view.jobs.get(uid)
    found = [each for pod in view.pods_of(uid) if pod.live and (each := _unplanned_pod(job, pod)) is not None]
    found += _overlapping_attempts(view, uid)
    if job is not None:
        found += _half_bound_gang(view, job)
        found += _unexplained_wait(job)
    return found


def _unplanned_pod(job: JobSeen | None, pod: PodSeen) -> Suspicion | None:
    """(c)"""
    said, allowance_s, duty = _what_is_wrong(job, pod)
    if said is None:
        return None
    return Suspicion(
        invariant=Invariant.POD_WITHOUT_PLAN,
        subject=(pod.uid,),
        objects=(f"Pod/{pod.name}", *((f"TrainingJob/{job.name}",) if job is not None else ())),
        sentence=f"pod {pod.name} {said}",
        allowance_s=allowance_s,
        duty=duty,
    )


def _what_is_wrong(job: JobSeen | None, pod: PodSeen) -> tuple[str | None, float, Part | None]:
    member = pod.member
    if member is None or member.attempt is None or member.rank is None:
        return "carries a job's uid but no readable attempt and rank", SETTLE_S, None
    if (job is None or job.deleting) and not pod.is_controlled:
        return None, GONE_S, None
    if job is None:
        return "lives on, but its job is gone", GONE_S, None
    if member.attempt > job.attempt:
        return f"is of attempt {member.attempt}, but the job is at {job.attempt}", SETTLE_S, None
    over = _why_over(job)
    if over is not None:
        return f"lives on, but its job {over}", ROLL_BACK_S, Part.OPERATOR
    if member.attempt < job.attempt:
        left = f"of attempt {member.attempt} lives on, but the job is at {job.attempt}"
        return left, OLD_ATTEMPT_S, Part.OPERATOR
    plan = job.current_plan
    if plan is None or member.plan_id != plan.plan_id:
        held = "has no plan" if plan is None else f"has plan {plan.plan_id}"
        return f"says plan {member.plan_id}, but its job {held}", OLD_ATTEMPT_S, Part.OPERATOR
    return _misplaced(plan, pod, member.rank), SETTLE_S, None


def _why_over(job: JobSeen) -> str | None:
    if job.deleting:
        return "is being deleted"
    if job.suspended:
        return "is suspended"
    if job.phase in FINISHED or job.phase in (Phase.RESTARTING, Phase.SUSPENDED):
        return f"is {job.phase.value}"
    return None


def _misplaced(plan: PlanSeen, pod: PodSeen, rank: int) -> str | None:
    if not plan.released:
        return f"exists, but plan {plan.plan_id} is not released"
    if rank >= len(plan.nodes):
        return f"is rank {rank}, but plan {plan.plan_id} has {len(plan.nodes)} ranks"
    planned = plan.nodes[rank]
    if pod.pinned_to != planned:
        return f"is pinned to {pod.pinned_to or 'no single node'}, but its plan says {planned}"
    if pod.node is not None and pod.node != planned:
        return f"is bound to {pod.node}, but its plan says {planned}"
    return None


def _overlapping_attempts(view: View, uid: str) -> list[Suspicion]:
    """(d)"""
    pods = [pod for pod in view.pods_of(uid) if _is_running_somewhere(view, pod)]
    attempts = sorted({pod.member.attempt for pod in pods if pod.member and pod.member.attempt is not None})
    if len(attempts) < 2:
        return []
    job = view.jobs.get(uid)
    names = tuple(sorted(f"Pod/{pod.name}" for pod in pods))
    listed = ", ".join(map(str, attempts))
    return [
        Suspicion(
            invariant=Invariant.TWO_LIVE_ATTEMPTS,
            subject=(uid, *map(str, attempts)),
            objects=((f"TrainingJob/{job.name}",) if job is not None else ()) + names,
            sentence=f"job {job.name if job is not None else uid}: attempts {listed} have live pods at the same time",
        )
    ]


def _is_running_somewhere(view: View, pod: PodSeen) -> bool:
    """True if the pod runs. A terminating pod counts, except on a node that is lost or was lost since its deletion
    began.
    """
    if pod.terminal or pod.deleted_s is None:
        return not pod.terminal
    node = view.nodes.get(pod.node) if pod.node is not None else None
    return node is not None and node.ready and node.ready_since_s < pod.deleted_s


def _half_bound_gang(view: View, job: JobSeen) -> list[Suspicion]:
    """(e). The deadline is by the planner's clock, which may be wrong: its length counts from the first pod, too."""
    plan = job.current_plan
    if plan is None or not plan.released:
        return []
    pods = [pod for pod in view.pods_of(job.uid) if pod.member and pod.member.attempt == job.attempt]
    bound = {pod.member.rank for pod in pods if pod.member and (pod.node is not None or pod.terminal)}
    unbound = {pod.member.rank for pod in pods if pod.member and pod.live and pod.node is None} - bound
    if job.phase is Phase.QUEUED:  # pods are still being created: a missing one is as unbound as a pending one
        unbound |= set(range(len(plan.nodes))) - bound
    alive = sorted(pod.name for pod in pods if pod.live)
    if not bound or not unbound or not alive:
        return []
    first_s = min(pod.created_s for pod in pods)
    return [
        Suspicion(
            invariant=Invariant.HALF_BOUND_GANG,
            subject=(job.uid, str(job.attempt)),
            objects=(f"TrainingJob/{job.name}", *(f"Pod/{name}" for name in alive)),
            sentence=f"job {job.name}: {len(bound)} of {len(plan.nodes)} ranks of attempt {job.attempt} are bound, "
            f"the bind deadline is over and {len(alive)} pods are not being deleted",
            allowance_s=DEADLINE_S,
            duty=Part.OPERATOR,
            not_before_s=max(plan.bind_deadline_s, first_s + plan.bind_deadline_s - plan.committed_s),
        )
    ]


def _unexplained_wait(job: JobSeen) -> list[Suspicion]:
    """(g)"""
    if not job.waiting or job.pending is not None:
        return []
    return [
        Suspicion(
            invariant=Invariant.WAITING_UNEXPLAINED,
            subject=(job.uid, str(job.attempt)),
            objects=(f"TrainingJob/{job.name}",),
            sentence=f"job {job.name} waits for more than {REASON_S:g} s and {UNSAID}",
            allowance_s=REASON_S,
            duty=Part.PLANNER,
        )
    ]


def suspicions_in(view: View, scope: Scope, fitted: Fitted) -> list[Suspicion]:
    """All suspicions of one scope."""
    kind, name = scope
    return suspicions_of_job(view, name) if kind == "job" else overloads(loads_on(view, name), fitted)
