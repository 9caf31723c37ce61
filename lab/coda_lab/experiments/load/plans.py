"""What is submitted: jobs and foreign pods as pure functions of a seed, and as objects.

The sequences have no end and no submission times: `driver` takes the next item when less is open than the load asks
for. So every run always has waiting work, and the same seed gives the same jobs on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from coda.model.job import SharingWish
from coda_kube.objects.names import API_VERSION, GPU, KIND
from coda_lab.kubelets.behaviour import PREFIX

NAMESPACE: Final = "default"
LARGEST_GANG: Final = 64
LARGEST_SHARE: Final = 0.5  # of all nodes: what one gang may fill
GPUS_PER_RANK: Final = ((1, 3), (2, 2), (4, 2), (8, 3))  # (GPUs, weight)
RUN_S: Final = (1.0, 20.0)
ACT_AFTER_S: Final = (0.3, 25.0)  # at full load a job waits and runs about this long: the act meets every phase
FAILING_SHARE: Final = 0.12
ACTING_SHARE: Final = 0.25
EXIT_CODE: Final = 3
CLASSES: Final = tuple(each.value for each in (SharingWish.GUARANTEED, SharingWish.OPPORTUNISTIC, SharingWish.AUTO))
GPU_MEMORY: Final = "20Gi"  # four fill a card
TENANTS: Final = ("red", "blue", "firm")  # namespaces
TURN: Final = 25  # jobs until another tenant asks for most
TENANTS_RANKS: Final = 4  # of a gang at most: large ones that wait leave too many GPUs free for anybody to be stopped
TENANTS_RUN: Final = 3.0  # times as long: a gang that just started is not stopped
OF_ITS_TURN: Final = 0.7  # share of the jobs
RESUMING_SHARE: Final = 0.8
NOTICES_S: Final = (0, 0, 2, 8)
EXIT_AFTER_S: Final = 0.5  # of those that listen: half
TUNED_SHARE: Final = 0.3


class End(Enum):
    """How a job may end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"  # by the test
    TAKEN_BACK = "taken back"  # by a restore of etcd: it was submitted after the snapshot


class Act(Enum):
    """What a job's user does to it midway."""

    SUSPEND = "suspend"  # and resume `pause_s` later
    DELETE = "delete"
    ALLOW_RETRIES = "allow retries"
    MORE_CORES = "more cores"  # taken while the job is queued, else refused by the API server
    FEWER_RANKS = "fewer ranks"  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job: its shape, the run time of its ranks, and what happens to it. `failing_rank` None: none fails by
    itself.
    """

    name: str
    replicas: int
    gpus_per_replica: int
    cpus_per_replica: int
    run_s: float
    retries: int = 3
    failing_rank: int | None = None
    fails_always: bool = False  # else in the first attempt only
    act: Act | None = None
    act_after_s: float = 0.0
    pause_s: float = 0.0
    last_rank_s: float = 0.0  # rank 0 runs so much longer than the others
    service_class: str = ""
    namespace: str = NAMESPACE
    resumable: bool = False
    notice_s: int = 0  # it asks to be told before it is stopped
    listens: bool = False  # it ends by itself once it is told
    is_tuned: bool = False  # its cores are the allocator's

    @property
    def id(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def gpus(self) -> int:
        """The GPUs of the whole gang."""
        return self.replicas * self.gpus_per_replica

    @property
    def ends(self) -> frozenset[End]:
        """The possible ends. A rank that always fails ends its job, unless an edit allows more retries meanwhile: then
        the same end comes later.
        """
        end = End.FAILED if self.failing_rank is not None and self.fails_always else End.SUCCEEDED
        return frozenset({end, End.DELETED} if self.act is Act.DELETE else {end})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """A foreign pod, for the default profile of the same kube-scheduler."""

    name: str
    gpus: int
    cpus: int
    run_s: float


def jobs(seed: int, *, nodes: int, gpus_per_node: int) -> Iterator[JobPlan]:
    """The endless jobs of a run on a cluster of equal nodes. None is larger than the cluster."""
    rng = random.Random(f"jobs {seed}")
    number = 0
    while True:
        number += 1
        yield _job(rng, f"gang-{number}", nodes, gpus_per_node)


def of_all_classes(plans: Iterator[JobPlan], seed: int) -> Iterator[JobPlan]:
    """The same jobs; those with one GPU in each rank are of the three classes, as often of each."""
    rng = random.Random(f"classes {seed}")
    for plan in plans:
        service_class = rng.choice(CLASSES)
        yield replace(plan, service_class=service_class) if plan.gpus_per_replica == 1 else plan


def of_tenants(plans: Iterator[JobPlan], seed: int) -> Iterator[JobPlan]:
    """Jobs like these, but smaller and longer, of three tenants. One after the other asks for most: it borrows, and
    then gives back.
    """
    rng = random.Random(f"tenants {seed}")
    for number, plan in enumerate(plans):
        its_turn = TENANTS[number // TURN % len(TENANTS)]
        resumable = rng.random() < RESUMING_SHARE
        replicas = min(plan.replicas, TENANTS_RANKS)
        yield replace(
            plan,
            replicas=replicas,
            failing_rank=None if plan.failing_rank is None else min(plan.failing_rank, replicas - 1),
            run_s=TENANTS_RUN * plan.run_s,
            namespace=its_turn if rng.random() < OF_ITS_TURN else rng.choice(TENANTS),
            resumable=resumable,
            notice_s=rng.choice(NOTICES_S) if resumable else 0,
            listens=rng.random() < 0.5,
        )


def with_tuned_cores(plans: Iterator[JobPlan], seed: int) -> Iterator[JobPlan]:
    """The same jobs; the cores of some are the allocator's, which resizes them while they run."""
    rng = random.Random(f"tuned {seed}")
    for plan in plans:
        yield replace(plan, is_tuned=True) if rng.random() < TUNED_SHARE else plan


def foreign_pods(seed: int) -> Iterator[PodPlan]:
    """The endless foreign pods of a run, half of them with GPUs."""
    rng = random.Random(f"pods {seed}")
    number = 0
    while True:
        number += 1
        gpus = rng.choice((1, 1, 2, 4)) if rng.random() < 0.5 else 0
        cpus = rng.randint(1, 4) if gpus else rng.randint(1, 12)
        yield PodPlan(name=f"other-{number}", gpus=gpus, cpus=cpus, run_s=_between(rng, RUN_S))


def _job(rng: random.Random, name: str, nodes: int, gpus_per_node: int) -> JobPlan:
    sizes, weights = zip(*GPUS_PER_RANK, strict=True)
    per_rank = min(rng.choices(sizes, weights)[0], gpus_per_node)
    most = max(1, min(LARGEST_GANG, int(nodes * LARGEST_SHARE * (gpus_per_node // per_rank))))
    replicas = round(most ** rng.random())  # many small, some large
    draws = [rng.random() for _ in range(4)]
    run_s, act_after_s, pause_s = _between(rng, RUN_S), _between(rng, ACT_AFTER_S), _between(rng, (1.0, 6.0))
    act = rng.choice(tuple(Act)) if draws[0] < ACTING_SHARE else None
    failing_rank = rng.randrange(replicas) if draws[1] < FAILING_SHARE else None
    if act is Act.FEWER_RANKS:
        failing_rank = None  # it might be cut away
    return JobPlan(
        name=name,
        replicas=replicas,
        gpus_per_replica=per_rank,
        cpus_per_replica=1 if draws[2] < 0.7 else 3,
        run_s=run_s,
        retries=0 if failing_rank is not None and draws[3] < 0.5 else 1 if failing_rank is not None else 3,
        failing_rank=failing_rank,
        fails_always=failing_rank is not None and draws[3] < 0.7,
        act=act,
        act_after_s=act_after_s,
        pause_s=pause_s,
    )


def job_json(plan: JobPlan) -> dict[str, Any]:
    """The TrainingJob. A failing rank fails after half of its run."""
    notes = {f"{PREFIX}run-seconds": f"{plan.run_s:g}"}
    if plan.last_rank_s:
        notes[f"{PREFIX}run-seconds.rank-0"] = f"{plan.run_s + plan.last_rank_s:g}"
    if plan.failing_rank is not None:
        scope = f"rank-{plan.failing_rank}" if plan.fails_always else "attempt-1"
        notes[f"{PREFIX}exit-code.{scope}"] = str(EXIT_CODE)
        notes[f"{PREFIX}run-seconds.{scope}"] = f"{plan.run_s / 2:g}"
    if plan.listens:
        notes[f"{PREFIX}exit-on-stop-seconds"] = f"{EXIT_AFTER_S:g}"
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": plan.name, "namespace": plan.namespace},
        "spec": _wishes(plan)
        | {
            "replicas": plan.replicas,
            "gpusPerReplica": plan.gpus_per_replica,
            "cpusPerReplica": "auto" if plan.is_tuned else plan.cpus_per_replica,
            "retries": plan.retries,
            "template": {
                "metadata": {"annotations": notes},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "train:1"}]},
            },
        },
    }


def _wishes(plan: JobPlan) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if plan.resumable or plan.service_class:
        found["resumable"] = True
    if plan.notice_s:
        found["stopNoticeSeconds"] = plan.notice_s
    if plan.service_class:
        found |= {"serviceClass": plan.service_class, "gpuMemory": GPU_MEMORY}
    return found


def edit_json(plan: JobPlan) -> dict[str, Any]:
    """The merge patch of an edit."""
    if plan.act is Act.ALLOW_RETRIES:
        return {"spec": {"retries": plan.retries + 1}}
    if plan.act is Act.MORE_CORES:
        return {"spec": {"cpusPerReplica": plan.cpus_per_replica + 1}}
    return {"spec": {"replicas": max(1, plan.replicas // 2)}}


def pod_json(plan: PodPlan) -> dict[str, Any]:
    """The foreign pod."""
    amounts = {"cpu": str(plan.cpus)} | ({GPU: str(plan.gpus)} if plan.gpus else {})
    container = {"name": "main", "image": "other:1", "resources": {"limits": amounts, "requests": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "namespace": NAMESPACE,
            "labels": {"app": "other"},
            "annotations": {f"{PREFIX}run-seconds": f"{plan.run_s:g}"},
        },
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def _between(rng: random.Random, bounds_s: tuple[float, float]) -> float:
    return round(rng.uniform(*bounds_s), 2)
