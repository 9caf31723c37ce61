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
    ("name", "says", "phase"),
    [
        ("job/a", "default/job/a does not wait: no pod of it is held back by the planner.", ""),
        ("rs/b", "default/replicaset/b does not wait: no pod of it is held back by the planner.", ""),
        ("default/statefulset/c", "default/statefulset/c does not wait: no pod of it is held back by the planner.", ""),
        ("pod/runs", "default/pod/runs does not wait for the planner: Running on n1.", "Running"),
    ],
)
async def test_what_does_not_wait_is_told_from_what_is_not_there(
    api: FakeApi, name: str, says: str, phase: str
) -> None:
    told = await explained(api, "default", name)
    assert told.sentences == (says,)
    assert told.as_json() == {
        "name": says.partition(" ")[0],
        "waits": False,
        "phase": phase,
        "nodes": ["n1"] if phase else [],
    }
    kind = name.split("/")[-2]
    with pytest.raises(InvalidInput, match=r"there is no \w+ nope in namespace default"):
        await explained(api, "default", f"{kind}/nope")


async def test_whoever_may_not_read_it_is_told_that_it_does_not_wait(api: FakeApi) -> None:
    def forbid(call: Call) -> None:
        if call.path.startswith(BATCH_JOBS):
            raise Rejected(403, "Forbidden", "jobs is forbidden")

    api.before = forbid
    with pytest.raises(InvalidInput, match="nothing of default/job/a waits for the planner"):
        await explained(api, "default", "job/a")
