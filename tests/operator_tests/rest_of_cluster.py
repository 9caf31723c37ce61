"""Everybody else in a cluster, in a few lines each: a planner, a scheduler and kubelets, driven by what they see."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_RANK
from coda_kube.objects.pods.trial_spec import spec_of_attempt
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds, whole_from_quantity
from tests.operator_tests.fake_cluster import JOBS, LEASE, NODES, PODS, FakeCluster, clock

EPOCH = 7


@dataclass(slots=True, kw_only=True)
class RestOfCluster:
    """`run_s` is how long a rank runs, `exit_code` says with what it ends (None: never); both by attempt and rank."""

    api: FakeCluster
    run_s: Callable[[int, int], float] = lambda attempt, rank: 1.0
    exit_code: Callable[[int, int], int | None] = lambda attempt, rank: 0
    stop_s: float = 0.2  # how long a pod takes to end after its deletion was asked for, if it has that long
    needs_gib: int = 0  # of memory: rank 1 is killed where its limit is lower
    plans: bool = True
    binds: bool = True
    moves_pods: bool = True  # False: a test does it
    skew_s: float = 0.0  # of the planner's clock
    first_node: int = 0  # of the next plans: that of rank 0
    lost_nodes: set[str] = field(default_factory=set)  # their kubelets say nothing any more
    _begun: set[tuple[str, Callable[[Json], None], str]] = field(default_factory=set)

    async def run(self) -> None:
        """React to every change, until cancelled."""
        while True:
            seen = self.api.version
            self.act()
            if self.api.version == seen:
                await self.api.until(lambda seen=seen: self.api.version > seen, timeout_s=1e9)  # type: ignore[misc]

    def act(self) -> None:
        for job in self.api.all("trainingjobs"):
            self._plan(job)
        for pod in self.api.all("pods") if self.moves_pods else ():
            self._move(pod)

    def _plan(self, job: Json) -> None:
        metadata, spec, status = job["metadata"], job["spec"], job.get("status") or {}
        attempt, plan = status.get("attempt"), status.get("placement")
        if not self.plans or status.get("phase") != "Queued" or spec["suspend"] or "deletionTimestamp" in metadata:
            return
        wait_s = seconds_from_time(status.get("notBefore")) - clock()
        if status["observedGeneration"] != metadata["generation"]:
            return
        if plan and (plan["attempt"], plan["generation"]) == (attempt, metadata["generation"]):
            return
        if wait_s > 0:
            self._later(wait_s)
            return
        version, now_s = self.api.version, clock() + self.skew_s
        self.api.change(
            f"{JOBS}/{metadata['name']}",
            lambda item: item["status"].update(
                placement=plan_json(item, plan_id=f"plan-{version}", now_s=now_s, first=self.first_node)
            ),
        )

    def _move(self, pod: Json) -> None:
        metadata, status, path = pod["metadata"], pod["status"], f"{PODS}/{pod['metadata']['name']}"
        node = pod["spec"].get("nodeName")
        if node in self.lost_nodes:
            return
        if "deletionTimestamp" in metadata:
            if metadata.get("stopped") and not metadata.get("finalizers"):
                self.api.remove(path)
            elif not metadata.get("stopped"):
                grace_s = metadata.get("deletionGracePeriodSeconds", self.stop_s)
                self._change(path, stop, after_s=min(self.stop_s, grace_s), again=f"{grace_s} s")
        elif not node and self.binds:
            self.api.change(path, lambda item: item["spec"].update(nodeName=pin_of(item)))
        elif node and status["phase"] == "Pending":
            self._change(path, start, after_s=0.1)
        elif node and status["phase"] == "Running":
            attempt, rank = int(metadata["labels"][LABEL_ATTEMPT]), int(metadata["labels"][LABEL_RANK])
            code = self.exit_code(attempt, rank)
            limit = (pod["spec"]["containers"][0]["resources"]["limits"]).get("memory")
            if rank == 1 and limit and whole_from_quantity(limit) < self.needs_gib << 30:
                self._change(path, kill_for_memory, after_s=self.run_s(attempt, rank))
            elif code is not None:
                self._change(path, END_BY_CODE[code], after_s=self.run_s(attempt, rank))

    def _change(self, path: str, change: Callable[[Json], None], *, after_s: float, again: str = "") -> None:
        """Once per pod, change and `again`, however often somebody looks meanwhile."""
        uid = self.api.item(path)["metadata"]["uid"]
        if (uid, change, again) in self._begun:
            return
        self._begun.add((uid, change, again))

        def do() -> None:
            if self.api.exists(path) and self.api.item(path)["metadata"]["uid"] == uid:
                self.api.change(path, change)

        asyncio.get_running_loop().call_later(after_s, do)

    def _later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds + 0.001, self.act)


def plan_json(job: Json, *, plan_id: str, epoch: int = EPOCH, now_s: float | None = None, first: int = 0) -> Json:
    """A released plan of the wanted attempt: rank r goes to node n<first + r>."""
    now_s = clock() if now_s is None else now_s
    return {
        "attempt": job["status"]["attempt"],
        "planId": plan_id,
        "epoch": epoch,
        "generation": job["metadata"]["generation"],
        "state": "Released",
        "nodes": [f"n{first + rank}" for rank in range(spec_of_attempt(job)["replicas"])],
        "cpusPerReplica": 4,
        "committedTime": time_from_seconds(now_s),
        "bindDeadline": time_from_seconds(now_s + 60),
    }


def pin_of(pod: Json) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def start(pod: Json) -> None:
    main = {"name": "main", "state": {"running": {"startedAt": time_from_seconds(clock())}}}
    started = time_from_seconds(clock())
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": started}
    pod["status"] = {
        "phase": "Running",
        "startTime": started,
        "conditions": [bound],
        "containerStatuses": [main],
    }


def finish(pod: Json, code: int) -> None:
    ended = {"exitCode": code, "finishedAt": time_from_seconds(clock()), "reason": "Error" if code else "Completed"}
    for known in pod["status"].get("containerStatuses", ()):
        ended |= known["state"].get("running", {})  # since when it ran
    main = {"name": "main", "state": {"terminated": ended}}
    pod["status"] |= {"phase": "Failed" if code else "Succeeded", "containerStatuses": [main]}


def kill_for_memory(pod: Json) -> None:
    finish(pod, 137)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"


def stop(pod: Json) -> None:
    """What the kubelet does after a deletion was asked for."""
    pod["metadata"]["stopped"] = True


END_BY_CODE = {code: functools.partial(finish, code=code) for code in (0, 1, 137, 139)}


@asynccontextmanager
async def rest_of_cluster(api: FakeCluster, *, nodes: int = 4, **behaviour: object) -> AsyncIterator[RestOfCluster]:
    """Nodes n0, n1, ..., the planner's Lease, and everybody at work until the block ends."""
    for number in range(nodes):
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": time_from_seconds(clock())}
        allocatable = {"nvidia.com/gpu": "8", "cpu": "48", "memory": "128Gi"}
        status = {"conditions": [ready], "allocatable": allocatable}
        api.set(NODES, {"metadata": {"name": f"n{number}"}, "status": status})
    api.set(LEASE.rsplit("/", 1)[0], {"metadata": {"name": "coda-planner"}, "spec": {"leaseTransitions": EPOCH}})
    rest = RestOfCluster(api=api, **behaviour)  # type: ignore[arg-type]  # tests name the fields they change
    running = asyncio.create_task(rest.run())
    try:
        yield rest
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
