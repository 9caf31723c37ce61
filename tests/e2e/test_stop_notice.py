"""Jobs that are told before they are stopped for another: whoever answers goes at once, all others at the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import events_of, job_json, pods_of, submit, wait_for, wait_for_phase

pytestmark = pytest.mark.e2e

SETTINGS = {"CODA_SCHEDULING_POLICY": "coda", "CODA_ARRAY_LARGE_SHARE": "0.5", "CODA_STOP_NOTICE_LIMIT_S": "30"}
SPEC = ClusterSpec(nodes="2x8x48", racks=1, agents=2, extenders=1, environ_by_part={"extender-0": SETTINGS})
LONG_S, SHORT_S = 600, 4  # the platform allows 30


def resuming(
    name: str, gpus: int = 1, *, notice_s: int = 0, simulated: dict[str, str] | None = None, **said: str
) -> Json:
    """A job that never ends by itself. `said`: what it says to the agent."""
    job = job_json(name, gpus=gpus, run_s=None, simulated=simulated, spec={"resumable": True, "cpusPerReplica": 1})
    if notice_s:
        job["spec"]["stopNoticeSeconds"] = notice_s
    notes = {f"progress.coda.scheduler/{key.replace('_', '-')}": text for key, text in said.items()}
    job["spec"]["template"]["metadata"]["annotations"] |= notes
    return job


async def host_guests(user: Client, guests: list[Json]) -> None:
    """Fill the small jobs' node, so that the others are guests of the large ones', and then make room at home."""
    for name, gpus in (("three", 3), ("two", 2), ("also-three", 3)):
        await wait_for_phase(user, await submit(user, resuming(name, gpus)), "Running")
    for guest in guests:
        await submit(user, guest)
    for guest in guests:
        await wait_for_phase(user, f"default/{guest['metadata']['name']}", "Running")
    for name in ("two", "three"):
        await user.delete(job_path(f"default/{name}"))


def status_of(item: Json) -> Json:
    status: Json = item.get("status") or {}
    return status


def is_told(item: Json) -> bool:
    return bool(status_of(item).get("stopDeadline"))


def was_stopped(item: Json) -> bool:
    return "lastStop" in status_of(item)


def shows(*path: str) -> Callable[[Json], bool]:
    def holds(item: Json) -> bool:
        found: Any = status_of(item)
        for name in path:
            found = (found or {}).get(name)
        return bool(found)

    return holds


async def test_who_answers_goes_at_once_and_who_does_not_at_the_deadline(cluster: LocalCluster, user: Client) -> None:
    """All of them make room for one large job, which starts once the last of them is gone."""
    answers = {"saves": "Saved", "exits": "Exited", "deaf": "Late", "lies": "Late"}
    guests = [
        resuming("saves", notice_s=LONG_S, step_seconds="0.01", stop_answer="saved"),
        resuming("exits", notice_s=LONG_S, simulated={"exit-on-stop-seconds": "0.2"}),
        resuming("deaf", notice_s=SHORT_S, step_seconds="0.01"),
        resuming("lies", notice_s=SHORT_S, step_seconds="0.01", stop_answer="pipe"),
    ]
    await host_guests(user, guests)
    await wait_for(user, job_path("default/saves"), shows("progress", "step"))
    large = await submit(user, job_json("large", gpus=8, run_s=None))
    told = await wait_for(user, job_path("default/deaf"), is_told)
    assert (status_of(told)["phase"], status_of(told)["reason"]) == ("Running", "Stopping")
    assert status_of(told)["message"] == "is to save and end within 4 s, so that default/large gets its room"
    assert status_of(told)["placement"]["stop"]["noticeSeconds"] == SHORT_S
    waiting = await user.get(job_path(large))
    assert (status_of(waiting).get("placement") or {}).get("state") != "Released"  # what is left is still held

    stopped = {name: status_of(await wait_for(user, job_path(f"default/{name}"), was_stopped)) for name in answers}
    assert {name: status["lastStop"]["answer"] for name, status in stopped.items()} == answers
    assert stopped["saves"]["lastStop"]["by"] == large
    assert stopped["saves"]["lastStop"]["lostSeconds"] < stopped["deaf"]["lastStop"]["lostSeconds"] + SHORT_S
    assert stopped["deaf"]["lostGPUSeconds"] == stopped["deaf"]["lostSeconds"] >= SHORT_S
    assert (stopped["saves"]["failures"], stopped["exits"]["failures"]) == (0, 0)
    await wait_for_phase(user, large, "Running")
    for name in answers:  # each of them runs again, and nobody took a mere end for success
        again = status_of(await wait_for_phase(user, f"default/{name}", "Running"))
        assert (again["attempt"], again.get("stopDeadline")) == (2, None)
    assert {"Stopping", "Migrated", "Running"} <= await events_of(user, "default/deaf")


async def test_a_notice_outlives_the_operator_and_needs_no_agent(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    """The moment that the first operator wrote down is the second one's. Without an agent only an end is an answer."""
    guests = [
        resuming("deaf", notice_s=SHORT_S, step_seconds="0.01", stop_answer="saved"),
        resuming("exits", notice_s=LONG_S, simulated={"exit-on-stop-seconds": "0.2", "exit-code": "1"}),
    ]
    await host_guests(user, guests)
    for agent in ("agent-0", "agent-1"):
        await cluster.kill(agent)
    large = await submit(user, job_json("large", gpus=8, run_s=None))
    told = await wait_for(user, job_path("default/deaf"), is_told)
    await cluster.kill("operator-0")
    await asyncio.gather(*(cluster.start(part) for part in ("operator-0",)))
    stopped = await wait_for(user, job_path("default/deaf"), was_stopped)
    assert status_of(stopped)["lastStop"]["answer"] == "Late"
    written = [entry["time"] for entry in stopped["metadata"]["managedFields"] if entry["manager"] == "coda-operator"]
    due_s, ordered_s = (
        seconds_from_time(status_of(told)["stopDeadline"]),
        seconds_from_time(status_of(told)["placement"]["stop"]["time"]),
    )
    assert due_s >= ordered_s + SHORT_S - 1.0
    assert max(map(seconds_from_time, written)) >= due_s - 1.0  # by the API server's clock, in whole seconds
    ended = status_of(await wait_for(user, job_path("default/exits"), was_stopped))
    assert (ended["lastStop"]["answer"], ended["failures"]) == ("Exited", 0)
    await wait_for_phase(user, large, "Running")
    for agent in ("agent-0", "agent-1"):
        await cluster.start(agent)
    assert len(await pods_of(user, "default/deaf")) <= 1
