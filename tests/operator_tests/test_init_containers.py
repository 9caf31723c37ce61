"""A rank whose init container fails: its log says why, and not that of the main container, which never started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import pin_of, rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

LOG = b"2026-01-01T00:00:01.0Z ModuleNotFoundError: No module named 'boto3'\n"


class Kubelets(FakeCluster):
    """The init container of each pod has a log, the main container has none yet."""

    async def tail(self, path: str, query: Mapping[str, str], *, keep_bytes: int, limit_s: float) -> bytes:
        if query["container"] != "download":
            raise Rejected(400, "BadRequest", f'container "{query["container"]}" is waiting to start: PodInitializing')
        return LOG


def download_ends(pod: Json, **ended: Any) -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    done = {"name": "download", "state": {"terminated": {"exitCode": 1, "reason": "Error", **ended}}}
    pod["status"] |= {"phase": "Failed", "initContainerStatuses": [done], "containerStatuses": [waiting]}


async def fails(api: FakeCluster, **ended: Any) -> Json:
    return await fails_by(api, [{"name": "download"}], lambda pod: download_ends(pod, **ended))


async def fails_by(api: FakeCluster, init_containers: list[Json], end: Callable[[Json], None]) -> Json:
    """The status of a job whose rank 0 ends so."""
    template = {"spec": {"containers": [{"name": "main", "image": "t"}], "initContainers": init_containers}}
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        job = api.submit(retries=0, template=template)
        await api.until(lambda: len(api.pods()) == 2)
        for name in api.pods():
            api.change(f"{PODS}/{name}", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))
        api.change(f"{PODS}/job-1-0", end)
        return await reaches(api, job, "Failed")


async def test_its_log_says_why() -> None:
    failure = (await fails(Kubelets()))["failure"]
    assert (failure["reason"], failure["explicit"], failure["rank"]) == ("Import error", True, 0)
    assert failure["decision"].startswith("it is not tried again: add the package")
    assert "unread" not in failure


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, "exit code 137: OOMKilled"),
        ({"exitCode": 128, "reason": "StartError", "message": "exec: no such file"}, "exit code 128: StartError"),
        ({}, "exit code 1"),
    ],
    ids=str,
)
async def test_what_its_kubelet_says_of_it_is_told(ended: dict[str, Any], said: str) -> None:
    status = await fails(FakeCluster(), **ended)
    assert f"rank 0 on n0 failed: its container download ended with {said}" in status["message"]
    if ended.get("reason") == "OOMKilled":
        assert status["failure"]["reason"] == "CPU out of memory"


@pytest.mark.parametrize("code", [137, 143, 1, 0])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_sidecar_that_its_kubelet_then_ends_is_not_blamed(code: int, is_first: bool) -> None:
    def end(pod: Json) -> None:
        download_ends(pod)
        shipper = {"name": "logship", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
        pod["status"]["initContainerStatuses"].insert(0 if is_first else 1, shipper)

    init_containers: list[Json] = [{"name": "download"}]
    init_containers.insert(0 if is_first else 1, {"name": "logship", "restartPolicy": "Always"})
    status = await fails_by(Kubelets(), init_containers, end)
    assert status["failure"]["reason"] == "Import error"
    assert "its container download ended with exit code 1" in status["message"]
