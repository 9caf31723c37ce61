"""Jobs whose cores the agent finds, and the other parts in it: planner, operator and kubelet, on fake time.

The planner's part is played: it grants a wish if the node has the cores. The operator's part is the core's own
(`coda.allocator.resize`), and the kubelet allocates, defers and applies as KEP-1287 says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from coda.allocator import RankSize, Tuning
from coda.allocator.resize import Progressing, next_resize
from coda.model.decision import DenialCode
from coda.model.job import WishAnswer
from coda.policy import PolicyConfig
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_RANK
from coda_kube.objects.tuning_status import (
    answer_from_json,
    answer_json,
    resize_from_json,
    resize_json,
    tuning_from_json,
)
from coda_lab.emulators.agent_rig import Rig
from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.load import Curved, Trainer
from coda_lab.emulators.node import MAIN, Work

ATTEMPT: Final = 1
MOST_DEMAND_CORES: Final = 64


def _demand_cores(trainer: Trainer | Curved) -> float:
    """The cores that a job's processes use without a limit: the fewest that keep its GPUs as busy as any count."""
    if isinstance(trainer, Trainer):
        return trainer.cores_needed
    shares = [trainer.curve(cores) for cores in range(1, MOST_DEMAND_CORES + 1)]
    return float(1 + shares.index(max(shares)))


@dataclass(slots=True, kw_only=True)
class Job:
    """A job of one rank. `defers`: its kubelet has no capacity for growth now. `applied`: the counts it was given."""

    name: str
    work: Work
    size: RankSize
    began_s: float
    allocated_s: float = 0.0
    defers: bool = False
    applied: list[int] = field(default_factory=list)
    done_s: float | None = None  # when its tuning had ended


class EmulatedCluster:
    """Planner, operator and kubelet for the jobs of one rig."""

    def __init__(self, rig: Rig, *, most: int = 32, node_cores: int = 1024, resize_s: int = 2) -> None:
        """`most`: the most cores that the planner gives a job; `node_cores`: the cores of all jobs together.
        `resize_s`: how long a kubelet takes to apply an allocated size.
        """
        self.rig = rig
        self.most = most
        self.node_cores = node_cores
        self.resize_s = resize_s
        self.jobs: dict[str, Job] = {}
        self._config = PolicyConfig()

    def submit(self, name: str, *, start: int, trainer: Trainer | Curved, gpus: int = 1, seed: int = 0) -> Job:
        """Start a job of one rank with `start` cores. `seed`: of the noise of its GPUs."""
        labels = {LABEL_JOB: name, LABEL_JOB_UID: f"uid-{name}", LABEL_ATTEMPT: str(ATTEMPT), LABEL_RANK: "0"}
        work = self.rig.node.start(
            f"{name}-1-0",
            cores=start,
            demand_cores=_demand_cores(trainer),
            trainer=trainer,
            gpus=gpus,
            seed=seed,
            labels=labels,
            quality=Quality.GUARANTEED,
        )
        size = RankSize(
            name=work.name,
            uid=work.uid,
            version="1",
            container=MAIN,
            wanted_m=start * 1000,
            allocated_m=start * 1000,
            actual_m=(start * 1000,),
        )
        self.jobs[name] = Job(name=name, work=work, size=size, began_s=self._now_s)
        self.rig.api.jobs[f"default/{name}"] = {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
            "spec": {"cpusPerReplica": "auto", "gpusPerReplica": gpus, "replicas": 1},
            "status": {
                "phase": "Running",
                "request": {"cpusPerReplica": start},
                "placement": {"attempt": ATTEMPT},
            },
        }
        return self.jobs[name]

    def end(self, name: str) -> None:
        """The job is over; its GPUs are free."""
        self.rig.node.stop(self.jobs.pop(name).work)
        del self.rig.api.jobs[f"default/{name}"]

    def status(self, name: str) -> Json:
        """The status of the TrainingJob."""
        status: Json = self.rig.api.jobs[f"default/{name}"]["status"]
        return status

    def tuning(self, name: str) -> Tuning:
        """The tuning that the agent wrote last. It must have begun."""
        tuning = tuning_from_json(self.status(name))
        assert tuning is not None
        return tuning

    async def run(self, seconds: int) -> None:
        """Run this many seconds of all parts."""
        for _ in range(seconds):
            await self.rig.run(1)
            for job in self.jobs.values():
                self._plan(job)
                self._operate(job)
                self._attend(job)
                if job.done_s is None and self.is_done(job.name):
                    job.done_s = self._now_s

    async def until_done(self, limit_s: int = 3600) -> None:
        """Run until every tuning has ended. Raises AssertionError after the limit."""
        for _ in range(limit_s):
            await self.run(1)
            if all(job.done_s is not None for job in self.jobs.values()):
                return
        raise AssertionError({name: self.status(name).get("tuning") for name in self.jobs})

    def is_done(self, name: str) -> bool:
        """True if the tuning has ended, in any way."""
        return (self.status(name).get("tuning") or {}).get("phase") not in (None, "Measuring", "Wishing")

    @property
    def _now_s(self) -> float:
        return self.rig.node.now.wall_s

    def _write(self, job: Job, fields: Json) -> None:
        self.rig.api.write_status(f"default/{job.name}", fields)

    def _plan(self, job: Job) -> None:
        """As the planner: grant or refuse a wish at once."""
        status = self.status(job.name)
        tuning, grant = status.get("tuning") or {}, status["placement"].get("grant") or {}
        wish = tuning.get("wish")
        if wish is None or grant.get("sequence", 0) >= wish["sequence"]:
            return
        others_m = sum(_counts(other.size) for other in self.jobs.values() if other is not job)
        most = min(self.most, self.node_cores - others_m // 1000)
        granted = wish["coresPerReplica"] <= max(most, _counts(job.size) // 1000)
        answer = WishAnswer(
            sequence=wish["sequence"],
            granted=granted,
            cores=wish["coresPerReplica"] if granted else most,
            answered_s=self._now_s,
            deadline_s=self._now_s + self._config.resize_deadline_s,
            code="" if granted else DenialCode.INSUFFICIENT_CPU.value,
            message="" if granted else "the node is full",
        )
        self._write(job, {"placement": {**status["placement"], "grant": answer_json(answer)}})

    def _operate(self, job: Job) -> None:
        """As the operator: send the next request of an open grant, and report its state."""
        status = self.status(job.name)
        grant, resize = status["placement"].get("grant"), status.get("resize") or {}
        if not grant or (resize.get("sequence") == grant["sequence"] and resize["state"] in ("Done", "Refused")):
            return
        answer, told = answer_from_json(status["placement"]), resize_from_json(status)
        step = next_resize(answer, told, ATTEMPT, [job.size], self._now_s)
        if step is None:
            return
        if step.resize != told:
            self._write(job, {"resize": resize_json(step.resize)})
        for _size, cores_m in step.patches:
            job.size = replace(job.size, wanted_m=cores_m, says=Progressing.UNSEEN, reason="", message="")

    def _attend(self, job: Job) -> None:
        """As the kubelet: allocate what fits, and apply it."""
        size = job.size
        if size.wanted_m == size.allocated_m == size.actual_m[0]:
            job.size = replace(size, says=Progressing.NOTHING, reason="", message="")
            return
        if size.wanted_m > size.allocated_m and job.defers:
            message = "Node didn't have enough resource: cpu"
            job.size = replace(size, says=Progressing.DEFERRED, reason="Deferred", message=message)
            return
        if size.wanted_m != size.allocated_m:
            size = replace(size, allocated_m=size.wanted_m, says=Progressing.UNDER_WAY, reason="", message="")
            job.allocated_s = self._now_s
        if self._now_s - job.allocated_s >= self.resize_s:
            self.rig.node.kubelet.resize(size.uid, MAIN, size.allocated_m / 1000)
            job.applied.append(size.allocated_m // 1000)
            size = replace(size, actual_m=(size.allocated_m,), says=Progressing.NOTHING)
        job.size = size


def _counts(size: RankSize) -> int:
    """Millicores, as kube-scheduler counts them."""
    return max(size.wanted_m, size.allocated_m, *size.actual_m)
