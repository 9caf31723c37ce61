"""Upgrade in place: operator and extender of an earlier commit are replaced under jobs that run and jobs that wait."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.host.paths import crds, manifests
from coda_lab.install import apply_all, objects_in
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.earlier import earlier_tree, environ_of
from tests.e2e.jobs import PATIENCE_S, job_json, jobs_path, submit, wait_for_pending, wait_for_phase
from tests.e2e.scheduling import QUICK_LEASE
from tests.lengths import LONG

pytestmark = pytest.mark.e2e

EXTENDERS, OPERATORS = ("extender-0", "extender-1"), ("operator-0",)
PARTS = (*EXTENDERS, *OPERATORS)
NODES, SINGLES, GANGS, WAITING = ("8x8x48", 36, 14, 50) if LONG else ("4x8x48", 12, 10, 20)
"""Single jobs and gangs of two take all GPUs; in the long version 50 jobs run and 50 wait."""

AT_ONCE = 24 if LONG else 12  # of 32 or 16 gangs of two that have room: one whose placement cannot be written goes last
SPEC = ClusterSpec(
    nodes=NODES, racks=2, stopped=frozenset(PARTS), environ_by_part={part: dict(QUICK_LEASE) for part in PARTS}
)
POLICIES = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
STAMPS = "coda-training-job-users"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the earlier commit; Python finds its parts there."""
    return earlier_tree(tmp_path_factory.mktemp("earlier"), "operator", "scheduler_extender")


async def install(admin: Client, tree: tuple[Path, Path]) -> None:
    """Definitions and roles, as `kubectl apply --server-side` would."""
    await apply_all(admin, [item for folder in tree for item in objects_in(folder)])


async def run_earlier(cluster: LocalCluster, admin: Client, earlier: Path) -> None:
    for part in PARTS:
        if cluster.is_running(part):
            await cluster.kill(part, signal.SIGTERM)
    await install(admin, (earlier / "crds", earlier / "deploy/manifests"))
    await remove_policies(admin, beyond=earlier / "deploy/manifests")
    await asyncio.gather(*(cluster.start(part, environ=environ_of(earlier)) for part in PARTS))


async def remove_policies(admin: Client, *, beyond: Path) -> None:
    """Those that the earlier commit does not have: the cluster begins with all of today's."""
    kept = {(item["kind"], item["metadata"]["name"]) for item in objects_in(beyond)}
    for item in objects_in(manifests()):
        kind, name = item["kind"], item["metadata"]["name"]
        if kind in POLICIES and (kind, name) not in kept:
            await admin.delete(f"/apis/admissionregistration.k8s.io/v1/{POLICIES[kind]}/{name}")
    if ("MutatingAdmissionPolicy", STAMPS) not in kept:
        await wait_until_unstamped(admin)


async def wait_until_unstamped(admin: Client) -> None:
    """The API server learns of policies within a moment; an earlier commit's refuse the stamp of today's."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(Rejected):
                made = await admin.create(jobs_path(), job_json("probe"), {"dryRun": "All"})
                if not made["metadata"].get("annotations"):
                    return
            await asyncio.sleep(0.1)  # only the next answer tells


async def submit_all(user: Client) -> tuple[list[str], list[str]]:
    """Jobs that take every GPU, running; and gangs that wait, the one queued first first."""
    jobs = [job_json(f"single-{number:02}", run_s=3600) for number in range(SINGLES)]
    jobs += [job_json(f"gang-{number:02}", replicas=2, run_s=3600) for number in range(GANGS)]
    running = [await submit(user, job) for job in jobs]
    for job in running:
        await wait_for_phase(user, job, "Running", within_s=60)
    wait = [await submit(user, job_json(f"waits-{number:02}", replicas=2, run_s=3600)) for number in range(WAITING)]
    queued: dict[str, str] = {}
    for job in wait:
        item = await wait_for_pending(user, job, "InsufficientGPUs")
        queued[job] = item["status"]["queuedTime"]
    return running, sorted(wait, key=lambda job: (queued[job], job))


async def seen(admin: Client) -> dict[str, Any]:
    """By job what must not change, its pods included."""
    jobs = {item["metadata"]["name"]: item for item in (await admin.list_pages(jobs_path()))["items"]}
    pods: dict[str, list[Any]] = {name: [] for name in jobs}
    for pod in (await admin.list_pages("/api/v1/namespaces/default/pods"))["items"]:
        if (name := pod["metadata"]["labels"]["coda.scheduler/job"]) in pods:
            pods[name].append(pod_state(pod))
    return {name: (job_state(jobs[name]["status"]), sorted(pods[name])) for name in jobs}


def job_state(status: Json) -> dict[str, Any]:
    kept = ("phase", "attempt", "queuedTime", "failures", "disruptions")
    return {name: status.get(name) for name in kept} | {"plan": (status.get("placement") or {}).get("planId")}


def pod_state(pod: Json) -> tuple[Any, ...]:
    containers = pod["status"].get("containerStatuses") or []
    started = [(each["restartCount"], each.get("containerID"), str(each.get("state"))) for each in containers]
    return (pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"].get("nodeName"), started)


class Upgrade:
    """The jobs of one upgrade, and what of them must stay."""

    def __init__(self, user: Client, admin: Client, running: list[str], waiting: list[str]) -> None:
        self._user = user
        self._admin = admin
        self.running = running
        self.waiting = waiting
        self._started: list[str] = []
        self._before: dict[str, Any] = {}

    async def look(self) -> None:
        self._before = await seen(self._admin)

    async def let_the_first_start(self) -> None:
        """A gang ends: the one that has waited longest starts in its place, and nothing else has changed."""
        ended, first = self.running.pop(), self.waiting.pop(0)
        await self._user.delete(job_path(ended))
        self._started.append(first)
        started = await wait_for_phase(self._user, first, "Running")
        queued, _ = self._before.pop(first.split("/")[1])
        assert started["status"]["queuedTime"] == queued["queuedTime"]
        assert started["status"]["attempt"] == 1
        del self._before[ended.split("/")[1]]
        now = await seen(self._admin)
        assert {name: now.get(name) for name in self._before} == self._before

    async def let_all_start(self) -> None:
        """Everything that still waits starts once there is room, in its first attempt."""
        held = [*self.running, *self._started]
        while self.waiting:
            for job in held:
                await self._user.delete(job_path(job))
            held, self.waiting = self.waiting[:AT_ONCE], self.waiting[AT_ONCE:]
            for job in held:
                item = await wait_for_phase(self._user, job, "Running", within_s=60)
                assert (item["status"]["attempt"], item["status"]["disruptions"]) == (1, 0)


@pytest.mark.parametrize(
    ("order", "ended_by"),
    [
        pytest.param((*EXTENDERS, *OPERATORS), signal.SIGTERM, id="extender first, ended as a rollout does"),
        pytest.param((*OPERATORS, *EXTENDERS), signal.SIGKILL, id="operator first, killed"),
    ],
)
async def test_nothing_restarts_and_nobody_loses_a_place(
    cluster: LocalCluster, user: Client, admin: Client, earlier: Path, order: tuple[str, ...], ended_by: signal.Signals
) -> None:
    await run_earlier(cluster, admin, earlier)
    upgrade = Upgrade(user, admin, *await submit_all(user))
    await upgrade.look()
    await install(admin, (crds(), manifests()))  # the definitions first, under the parts that still run
    await upgrade.let_the_first_start()
    for part in order:
        await cluster.kill(part, ended_by)
        await cluster.start(part)
        await upgrade.let_the_first_start()  # with parts of both commits at work, until the last
    await upgrade.let_all_start()
