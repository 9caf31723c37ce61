"""What `coda explain` says of the deadline of a Job whose pods wait."""

from __future__ import annotations

from typing import Any

import pytest

from coda.errors import Outage
from coda_cli.explain.explain_command import explained
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from tests.cli.explain.test_explain import gated
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import PODS

BATCH_JOBS = "/apis/batch/v1/namespaces/default/jobs"
STARTED = "2026-11-23T00:00:00Z"
SAYS = "Its activeDeadlineSeconds ends it at 2026-11-23 01:00 UTC, also if it still waits then."


def waiting(job: Json | None = None, kind: str = "Job") -> FakeApi:
    api = FakeApi()
    api.set(PODS, gated("a-1", "a", kind))
    if job is not None:
        api.set(BATCH_JOBS, {"metadata": {"name": "a"}, **job})
    return api


def batch_job(deadline_s: int | None = 3600, **status: Any) -> Json:
    limit = {} if deadline_s is None else {"activeDeadlineSeconds": deadline_s}
    return {"spec": limit, "status": status}


@pytest.mark.parametrize("name", ["job/a", "pod/a-1"])
async def test_the_end_of_a_jobs_deadline_is_said(name: str) -> None:
    api = waiting(batch_job(startTime=STARTED))
    assert SAYS in (await explained(api, "default", name)).sentences


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        pytest.param(batch_job(None, startTime=STARTED), "Job", id="without a deadline"),
        pytest.param(batch_job(), "Job", id="suspended, or not begun"),
        pytest.param(None, "Job", id="gone"),
        pytest.param(batch_job(startTime=STARTED), "ReplicaSet", id="of no Job"),
    ],
)
async def test_nothing_is_said_of_what_has_no_end(job: Json | None, kind: str) -> None:
    sentences = (await explained(waiting(job, kind), "default", "pod/a-1")).sentences
    assert sentences[0].startswith(f"default/{kind.lower()}/a waits")
    assert not [one for one in sentences if "Deadline" in one]


async def test_whoever_may_not_read_jobs_is_told_the_rest() -> None:
    def refuse(call: Call) -> None:
        if call.path.startswith("/apis/batch/"):
            raise error

    api = waiting(batch_job(startTime=STARTED))
    api.before = refuse
    error: Exception = Rejected(403, "Forbidden", "you may not")
    assert "It wants 1 pod of 2 cores." in (await explained(api, "default", "job/a")).sentences
    error = Outage("away")
    with pytest.raises(Outage):
        await explained(api, "default", "job/a")
