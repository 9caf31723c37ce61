"""What `coda explain` says of objects of others that do not wait, and of those that are not there."""

from __future__ import annotations

import pytest

from coda.errors import InvalidInput
from coda_cli.explain.explain_command import explained
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import PODS, pod_json

BATCH_JOBS = "/apis/batch/v1/namespaces/default/jobs"
SETS = "/apis/apps/v1/namespaces/default"
NOTHING_WAITS = (
    "Nothing of {} waits for the planner: it has no pods, or they run, have ended, or are another scheduler's "
    "(coda explain pod/NAME)."
)


def named(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {}}


@pytest.fixture
async def api() -> FakeApi:
    api = FakeApi()
    api.set(BATCH_JOBS, named("a"))
    api.set(f"{SETS}/replicasets", named("b"))
    api.set(f"{SETS}/statefulsets", named("c"))
    api.set(PODS, pod_json("runs", node="n1", status={"phase": "Running"}))
    return api


@pytest.mark.parametrize(
    ("name", "line_name", "says", "phase"),
    [
        ("job/a", "default/job/a", NOTHING_WAITS, ""),
        ("rs/b", "default/replicaset/b", NOTHING_WAITS, ""),
        ("default/statefulset/c", "default/statefulset/c", NOTHING_WAITS, ""),
        ("pod/runs", "default/pod/runs", "{} does not wait for the planner: Running on n1.", "Running"),
    ],
)
async def test_what_does_not_wait_is_told_from_what_is_not_there(
    api: FakeApi, name: str, line_name: str, says: str, phase: str
) -> None:
    told = await explained(api, "default", name)
    assert told.sentences == (says.format(line_name),)
    assert told.as_json() == {
        "name": line_name,
        "waits": False,
        "phase": phase,
        "nodes": ["n1"] if phase else [],
    }
    kind = name.split("/")[-2]
    with pytest.raises(InvalidInput, match=r"there is no \w+ nope in namespace default"):
        await explained(api, "default", f"{kind}/nope")


async def test_a_pod_that_waits_for_another_scheduler_is_told_how_to_come_to_coda(api: FakeApi) -> None:
    api.set(PODS, pod_json("etl-x", scheduler="default-scheduler"))
    told = await explained(api, "default", "pod/etl-x")
    assert told.sentences == (
        "default/pod/etl-x does not wait for the planner, but for the scheduler default-scheduler: Pending.",
        "Coda takes new pods of a namespace that takes part: "
        "kubectl label namespace default coda.scheduler/opt-in=true (docs/cpu-jobs.md has what is left out).",
    )
    assert (told.as_json()["waits"], told.phase) == (False, "Pending")


@pytest.mark.parametrize(
    ("scheduler", "more", "says"),
    [
        ("coda", {}, "Pending."),
        ("default-scheduler", {"node": "n1"}, "Pending on n1."),  # it pulls its image, say
        ("default-scheduler", {"status": {"phase": "Succeeded"}}, "Succeeded."),
    ],
)
async def test_other_pods_are_told_nothing_of_taking_part(api: FakeApi, scheduler: str, more: Json, says: str) -> None:
    api.set(PODS, pod_json("other", scheduler=scheduler, **more))
    told = await explained(api, "default", "pod/other")
    assert told.sentences == (f"default/pod/other does not wait for the planner: {says}",)


async def test_whoever_may_not_read_it_is_told_that_it_does_not_wait(api: FakeApi) -> None:
    def forbid(call: Call) -> None:
        if call.path.startswith(BATCH_JOBS):
            raise Rejected(403, "Forbidden", "jobs is forbidden")

    api.before = forbid
    with pytest.raises(InvalidInput, match="nothing of default/job/a waits for the planner"):
        await explained(api, "default", "job/a")
