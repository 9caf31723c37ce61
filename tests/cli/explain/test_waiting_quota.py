"""What `coda explain` says of quota that waiting CPU jobs hold."""

from __future__ import annotations

import pytest

from coda_cli.explain.explain_command import explained
from tests.cli.explain.test_explain import gated
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, PODS, job_json

SHORT = {"code": "QuotaExceeded", "message": "the whole gang needs 4", "generation": 1}
OTHER = SHORT | {"code": "InsufficientGPUs"}
REFUSED = 'not accepted yet: pods "train-" is forbidden: exceeded quota: memory, requested: requests.memory=64Gi'
SAYS = "Waiting pods hold quota too: 3 pods of CPU jobs in this namespace, with 6 cores."


def cluster() -> FakeApi:
    api = FakeApi()
    for name, owner in (("a-1", "a"), ("a-2", "a"), ("bare", "")):
        api.set(PODS, gated(name, owner))
    api.set(PODS.replace("default", "elsewhere"), gated("far", "a"))
    return api


async def test_a_job_beyond_its_quota_is_told_what_waiting_pods_hold_of_it() -> None:
    api = cluster()
    api.set(JOBS, job_json("train", pending=SHORT))
    refused = job_json("new", message=REFUSED)
    del refused["status"]["request"]
    api.set(JOBS, refused)
    for name in ("train", "new"):
        assert SAYS in (await explained(api, "default", name)).sentences


@pytest.mark.parametrize("name", ["train", "job/a"])
async def test_who_waits_for_something_else_is_told_nothing_of_it(name: str) -> None:
    api = cluster()
    api.set(JOBS, job_json("train", pending=OTHER))
    assert not [one for one in (await explained(api, "default", name)).sentences if "quota" in one]


async def test_where_no_pods_wait_nothing_is_said() -> None:
    api = FakeApi()
    api.set(JOBS, job_json("train", pending=SHORT))
    assert not [one for one in (await explained(api, "default", "train")).sentences if "Waiting pods" in one]
