"""What a quiet cluster never counts, each at least once: what is stopped, tried, dropped, refused, lost and taken over.

It follows the demo's story. By then every series was scraped at 0, so Prometheus sees that it grows."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from coda.contention import ContentionConfig
from coda_cli.demo import story_objects as objects
from coda_cli.demo.story_command import wait_for_rounds
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.host.ports import LOOPBACK
from coda_lab.spec import SCHEDULER
from tests.e2e.agents import wait_until
from tests.e2e.jobs import job_json, submit, wait_for, wait_for_phase, wait_gone
from tests.e2e.scheduling import leader_of
from tests.monitoring.breaking import Scene, killed, planner_process_dies
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.refusing import planner_may_not_write

PODS: Final = "/api/v1/namespaces/{}/pods"
Seen = Callable[[str], Awaitable[None]]
"""Waits until Prometheus has samples of an expression."""


async def all_happen(scene: Scene, prometheus: Prometheus) -> None:
    """One after the other; each is over before the next one."""

    async def seen(expression: str) -> None:
        await wait_until(partial(prometheus.samples, expression))

    for accident in (
        a_pod_asks_for_an_eviction,
        partial(an_attempt_fails, seen=seen),
        trials_pass_and_fail,
        an_owner_takes_its_gpus_back,
        a_pod_has_a_choice_of_nodes,
        connections_without_a_certificate,
        partial(writes_are_refused, seen=seen),
        partial(a_planner_process_dies, seen=seen),
        a_node_is_cordoned_while_the_next_leader_takes_over,
        partial(an_agent_only_observes, seen=seen),
    ):
        name = (accident.func if isinstance(accident, partial) else accident).__name__
        sys.stdout.write(f"{name.replace('_', ' ')}\n")
        await accident(scene)


async def a_pod_asks_for_an_eviction(scene: Scene) -> None:
    """kube-scheduler asks the extender whom it may evict for a pod of a higher class. Here that is nobody."""
    await _schedule(scene, "urgent", _is_refused, cpu="24", more={"priorityClassName": "system-cluster-critical"})


async def an_attempt_fails(scene: Scene, seen: Seen) -> None:
    """By the job's own fault; the next one runs until the end of this."""
    ends = {"exit-code.attempt-1": "1", "run-seconds.attempt-1": "1"}
    job = await submit(scene.user, job_json("fails-once", run_s=None, simulated=ends, spec={"retries": 1}))
    await wait_for(scene.user, job_path(job), lambda item: (item.get("status") or {}).get("attempt") == 2)
    await wait_for_phase(scene.user, job, "Running")
    await seen("coda_job_failed_attempts > 0")
    await scene.user.delete(job_path(job))


async def trials_pass_and_fail(scene: Scene) -> None:
    """A gang that steps in its trial, and one that lacks a module."""
    steps = _tried("steps")
    notes = {"total-steps": "1000000", "step-seconds": "0.01"}
    annotations = steps["spec"]["template"]["metadata"]["annotations"]
    annotations |= {f"progress.coda.scheduler/{name}": value for name, value in notes.items()}
    ends = {"exit-code": "1", "run-seconds": "2", "log": "ModuleNotFoundError: No module named 'apex'"}
    passes, fails = [await submit(scene.user, job) for job in (steps, _tried("imports", **ends))]
    await wait_for_phase(scene.user, fails, "Failed")
    await wait_for_phase(scene.user, passes, "Succeeded")


def _tried(name: str, **simulated: str) -> Json:
    behaves = {"run-seconds.attempt-2": "0.5"} | simulated
    return job_json(name, replicas=2, run_s=None, simulated=behaves, spec={"trial": {"runSeconds": 300}})


async def an_owner_takes_its_gpus_back(scene: Scene) -> None:
    """The gang of the story makes room for two jobs, of which one borrows from the other tenant."""
    for name in ("gpt", "too-early"):
        path = job_path(f"{objects.TRAINING}/{name}")
        await scene.user.delete(path)
        await wait_gone(scene.user, path)
    borrowers = [await submit(scene.user, job_json(f"borrows-{one}", gpus=7, run_s=None)) for one in range(2)]
    for job in borrowers:
        await wait_for_phase(scene.user, job, "Running")
    owner = await submit(scene.admin, job_json("owner", gpus=4, run_s=None, namespace=objects.CPU_JOBS))
    await wait_for_phase(scene.admin, owner, "Running")
    for job in (*borrowers, owner):
        await scene.admin.delete(job_path(job))
        await wait_gone(scene.admin, job_path(job))


async def a_pod_has_a_choice_of_nodes(scene: Scene) -> None:
    """kube-scheduler asks the extender which one is best for it."""
    await _schedule(scene, "small", lambda pod: bool(pod["spec"].get("nodeName")), cpu="10m", more={})


async def _schedule(scene: Scene, name: str, holds: Callable[[Json], bool], *, cpu: str, more: Json) -> None:
    """Create a pod that is none of Coda's, and delete it once this is true of it."""
    container = {"name": "main", "image": "any:1", "resources": {"requests": {"cpu": cpu}}}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]} | more
    path = PODS.format(objects.TRAINING)
    await scene.admin.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    await wait_for(scene.admin, f"{path}/{name}", holds)
    await scene.admin.delete(f"{path}/{name}", grace_s=0)


async def connections_without_a_certificate(scene: Scene) -> None:
    """Somebody who is not kube-scheduler connects to the leader."""
    port = scene.cluster.ports[await leader_of(scene.admin)]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(3):
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=context)
        assert await _ended(reader), "the extender answered"
        writer.close()


async def _ended(reader: asyncio.StreamReader) -> bool:
    """True once the other side has closed the connection without a byte."""
    try:
        return await reader.read() == b""
    except (ConnectionError, ssl.SSLError):
        return True


async def writes_are_refused(scene: Scene, seen: Seen) -> None:
    """A webhook of the cluster refuses what the planner writes."""
    async with planner_may_not_write(scene):
        await seen('coda_planner_refused_writes_total{reason="refused"} > 0')
        await seen("coda_planner_unwritable_jobs > 0")
    await scene.clear()


async def a_planner_process_dies(scene: Scene, seen: Seen) -> None:
    """As where the kernel ends it."""
    async with planner_process_dies(scene):
        await seen('coda_planner_processes_lost_total{cause="died"} > 0')
    await scene.clear()


async def a_node_is_cordoned_while_the_next_leader_takes_over(scene: Scene) -> None:
    """Its ranks are not bound yet, so the next leader drops the plan."""
    node = f"/api/v1/nodes/{objects.TUNED_NODE}"
    pinned = job_json("dropped", run_s=0.1)
    pinned["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": objects.TUNED_NODE}
    async with killed(scene, SCHEDULER):
        job = await submit(scene.user, pinned)
        await wait_for(scene.user, job_path(job), lambda item: "placement" in (item.get("status") or {}))
        await scene.admin.patch(node, {"spec": {"unschedulable": True}})
        leader = await leader_of(scene.admin)
        async with killed(scene, leader):
            await wait_for(scene.user, job_path(job), lambda item: item["status"].get("placement") is None)
    await scene.admin.patch(node, {"spec": {"unschedulable": False}})
    await wait_for_phase(scene.user, job, "Succeeded")


async def an_agent_only_observes(scene: Scene, seen: Seen) -> None:
    """The agent beside `stream` starts again, and is to change nothing. Then the pod wants all bandwidth again."""
    await scene.cluster.restart("agent-1", environ={"CODA_THROTTLE": "observe"})
    await wait_for_rounds(scene.cluster, objects.VICTIM_NODE, 2 * ContentionConfig().learn_windows)
    stream = f"{PODS.format(objects.ANALYTICS)}/stream"
    notes = objects.stream()["metadata"]["annotations"]
    await scene.admin.patch(stream, {"metadata": {"annotations": notes}})
    await seen("coda_agent_observed_actions_total > 0")


def _is_refused(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any("preemption: no candidate node" in (one.get("message") or "") for one in conditions)
