"""Submit a job as a user does, and wait for what a user sees."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path

NAMESPACE = "default"

PATIENCE_S = 60.0
"""How long the tests wait for what takes a second or two. Only a hang takes longer, however busy the machine is.

How fast things are is measured by `benchmarks`."""


def job_json(
    name: str,
    *,
    replicas: int = 1,
    gpus: int = 1,
    run_s: float | None = 1.0,
    simulated: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    namespace: str = NAMESPACE,
) -> Json:
    """A TrainingJob. `simulated`: annotations for the simulated kubelets, without their prefix."""
    notes = {f"sim.coda.scheduler/{key}": value for key, value in (simulated or {}).items()}
    if run_s is not None:
        notes["sim.coda.scheduler/run-seconds"] = str(run_s)
    return {
        "apiVersion": "coda.scheduler/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "gpusPerReplica": gpus,
            "cpusPerReplica": 1,
            "template": {
                "metadata": {"annotations": notes},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "train:1"}]},
            },
        }
        | copy.deepcopy(spec or {}),
    }


def jobs_path(namespace: str = NAMESPACE) -> str:
    return f"/apis/coda.scheduler/v1alpha1/namespaces/{namespace}/trainingjobs"


async def submit(client: Client, job: Json) -> str:
    """Create the job, and return its id."""
    await client.create(jobs_path(job["metadata"]["namespace"]), job)
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


async def wait_for(client: Client, path: str, holds: Callable[[Json], bool], *, within_s: float = PATIENCE_S) -> Json:
    """The object at `path` once `holds` is true of it, by a watch; fails with the last state when it takes too long."""
    found = await _watched(client, path, lambda item: item is not None and holds(item), within_s=within_s)
    assert found is not None
    return found


async def wait_gone(client: Client, path: str, *, uid: str | None = None, within_s: float = PATIENCE_S) -> None:
    """Until nothing is at `path`, by a watch; with `uid`, until the object of this uid is not."""
    await _watched(
        client,
        path,
        lambda item: item is None or (uid is not None and item["metadata"]["uid"] != uid),
        within_s=within_s,
    )


async def _watched(client: Client, path: str, holds: Callable[[Json | None], bool], *, within_s: float) -> Json | None:
    """What is at `path` once `holds` is true of it; None: nothing is there."""
    last: Json | None = None
    collection, name = path.rsplit("/", 1)
    this = {"fieldSelector": f"metadata.name={name}"}

    async def watched() -> Json | None:
        nonlocal last
        while True:
            try:
                listing = await client.get(collection, this)
                last = next(iter(listing["items"]), None)
                if holds(last):
                    return last
                since = {"resourceVersion": listing["metadata"]["resourceVersion"], "timeoutSeconds": "30"}
                async with client.watch(collection, this | since, idle_s=35) as events:
                    async for event in events:
                        if event["type"] == "ERROR":
                            break  # the server no longer has that version: list again
                        last = None if event["type"] == "DELETED" else event["object"]
                        if holds(last):
                            return last
            except Outage:
                await asyncio.sleep(0.1)  # the tests kill API servers too

    try:
        return await asyncio.wait_for(watched(), within_s)
    except TimeoutError:
        seen = "not there" if last is None else last.get("status")
        raise AssertionError(f"{path} did not get there within {within_s} s; it is {seen}") from None


async def wait_for_phase(client: Client, job: str, *phases: str, within_s: float = PATIENCE_S) -> Json:
    """The job once it is in one of `phases`."""
    return await wait_for(
        client, job_path(job), lambda item: (item.get("status") or {}).get("phase") in phases, within_s=within_s
    )


async def wait_for_pending(client: Client, job: str, code: str, *, within_s: float = PATIENCE_S) -> Json:
    """The job once its pending reason has this code."""

    def says(item: Json) -> bool:
        return bool(((item.get("status") or {}).get("pending") or {}).get("code") == code)

    return await wait_for(client, job_path(job), says, within_s=within_s)


async def pods_of(client: Client, job: str) -> list[Json]:
    """The pods of a job, by name."""
    namespace, name = job.split("/")
    listing = await client.list_pages(
        f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"coda.scheduler/job={name}"}
    )
    return sorted(listing["items"], key=lambda pod: str(pod["metadata"]["name"]))


async def events_of(client: Client, job: str) -> set[str]:
    """The reasons of the events on a job."""
    namespace, name = job.split("/")
    listing = await client.list_pages(
        f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": f"involvedObject.name={name}"}
    )
    return {event["reason"] for event in listing["items"]}
