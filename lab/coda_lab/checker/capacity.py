"""Invariants (a) and (b): the load of bound pods and released placements on each node, against its capacity. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coda.model import Phase
from coda_kube.objects.names import GPU
from coda_kube.objects.quantities import quantity_from_milli
from coda_lab.checker.objects import JobSeen, PlanSeen, PodSeen
from coda_lab.checker.report import Invariant
from coda_lab.checker.suspicion import Suspicion
from coda_lab.checker.view import View

SEAT: Final = "coda.scheduler/gpu-"
ONE: Final = 1000  # thousandths
RACE_S: Final = 2.0  # a foreign pod bound more shortly before the commit may be unseen; bind times are whole seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one resource of one node, against its capacity; in thousandths."""

    invariant: Invariant
    node: str
    resource: str
    asked: int
    allocatable: int
    objects: tuple[str, ...]

    @property
    def key(self) -> tuple[Invariant, str, str]:
        """The invariant, node and resource."""
        return self.invariant, self.node, self.resource


Fitted = Mapping[tuple[Invariant, str, str], int]
"""The last load with which a node fitted, or a smaller one since."""


def loads_on(view: View, name: str) -> Iterator[Load]:
    """Return every load of the node, for (a) and (b). A node that is gone has nothing to exceed, so it gives none."""
    node = view.nodes.get(name)
    if node is None:
        return
    bound = [pod for pod in view.pods_on(name) if not pod.terminal]
    for resource, asked in sorted(_total(bound).items()):
        pods = tuple(sorted(f"Pod/{pod.name}" for pod in bound if pod.request.get(resource)))
        yield Load(
            invariant=Invariant.NODE_OVER_COMMITTED,
            node=name,
            resource=resource,
            asked=asked,
            allocatable=node.allocatable.get(resource, 0),
            objects=(f"Node/{name}", *pods),
        )
    yield from _planned_loads(view, name, bound)


def _planned_loads(view: View, name: str, bound: list[PodSeen]) -> Iterator[Load]:
    """Leave out a pod that another scheduler bound after the newest placement: that is not Coda's doing."""
    withheld: defaultdict[str, int] = defaultdict(int)
    newest_commit_s, jobs = 0.0, []
    for job, ranks in view.ranks_on(name):
        open_ranks = [rank for rank in ranks if _is_withheld(view, job, rank)]
        if not open_ranks or job.plan is None:
            continue
        jobs.append(f"TrainingJob/{job.name}")
        newest_commit_s = max(newest_commit_s, job.plan.committed_s)
        for rank in open_ranks:
            for resource, amount in _asked(job, job.plan, rank).items():
                withheld[resource] += amount
    known = [pod for pod in bound if pod.outsider_since_s is None or pod.outsider_since_s < newest_commit_s - RACE_S]
    taken = _total(known)
    for resource, amount in sorted(withheld.items()):
        if amount:
            yield Load(
                invariant=Invariant.PLAN_OVER_COMMITTED,
                node=name,
                resource=resource,
                asked=taken.get(resource, 0) + amount,
                allocatable=view.nodes[name].allocatable.get(resource, 0),
                objects=(f"Node/{name}", *sorted(jobs)),
            )


def _asked(job: JobSeen, plan: PlanSeen, rank: int) -> Mapping[str, int]:
    """What a rank asks for: with a seat, it asks for no GPU."""
    if not plan.gpus:
        return job.rank_request
    return {**job.rank_request, GPU: 0, f"{SEAT}{plan.gpus[rank]}": ONE}


def _is_withheld(view: View, job: JobSeen, rank: int) -> bool:
    """True while the rank's pod may still take its place: unbound, or (until Launched) not created yet."""
    pods = list(view.pods_as(job.uid, job.attempt, rank))
    if any(pod.node is not None or pod.terminal for pod in pods):
        return False
    return job.phase is Phase.QUEUED or any(pod.live for pod in pods)


def _total(pods: list[PodSeen]) -> Mapping[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for pod in pods:
        for resource, amount in pod.request.items():
            total[resource] += amount
    return {resource: amount for resource, amount in total.items() if amount}


def overloads(loads: Iterable[Load], fitted: Fitted) -> list[Suspicion]:
    """The loads that exceed their node. A load that did not grow since it fitted is not charged: the node shrank."""
    return [
        _overload(load) for load in loads if load.asked > load.allocatable and load.asked > fitted.get(load.key, -1)
    ]


def fitted_after(loads: Iterable[Load], fitted: Fitted) -> Fitted:
    """The loads to remember: those that fit, and those that only shrank since they did."""
    return {
        load.key: load.asked
        for load in loads
        if load.asked <= load.allocatable or load.asked <= fitted.get(load.key, -1)
    }


def _overload(load: Load) -> Suspicion:
    who = "bound pods" if load.invariant is Invariant.NODE_OVER_COMMITTED else "bound pods and released plans"
    return Suspicion(
        invariant=load.invariant,
        subject=(load.node, load.resource),
        objects=load.objects,
        sentence=f"node {load.node}: {who} ask for {quantity_from_milli(load.asked)} {load.resource}, "
        f"allocatable is {quantity_from_milli(load.allocatable)}",
    )
