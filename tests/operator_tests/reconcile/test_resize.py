"""Grants of cores on running gangs: carried out, refused, given back; also when operators die on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda_kube.api.client import Rejected, error_from_answer
from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import JOBS, PODS, FakeCluster
from tests.operator_tests.operators import Wire, operator
from tests.operator_tests.resizing_nodes import (
    ResizingNodes,
    applies,
    cores_of,
    defers,
    except_rank,
    grant,
    never,
    resizing_nodes,
)
from tests.operator_tests.rest_of_cluster import rest_of_cluster

NO_ROUTE = '{"kind": "Status", "reason": "NotFound", "message": "the server could not find the requested resource"}'


def never_ends(attempt: int, rank: int) -> None:
    return None


async def until_phase(api: FakeCluster, job: str, phase: str) -> None:
    await api.until(lambda: api.status(job).get("phase") == phase, timeout_s=3600)


async def until_ended(api: FakeCluster, job: str, sequence: int = 1) -> Json:
    """The resize of that wish once it has ended."""

    def ended() -> bool:
        resize = api.status(job).get("resize") or {}
        return bool(resize.get("sequence") == sequence and resize["state"] in ("Done", "Refused"))

    await api.until(ended, timeout_s=3600)
    return dict(api.status(job)["resize"])


def resizes_of(api: FakeCluster) -> list[str]:
    """The pods for which a resize was asked, in order."""
    paths = [call.path for call in api.calls if call.verb == "patch" and call.path.endswith("/resize")]
    return [path.removesuffix("/resize").rsplit("/", 1)[1] for path in paths]


async def test_a_grant_is_carried_out_on_all_ranks_and_told_as_done() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), operator(api) as one:
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 9)
        resize = await until_ended(api, job)
        assert one.count("coda_operator_resizes_total", reason="Done") == 1
    assert (resize["state"], resize["coresPerReplica"]) == ("Done", 9)
    assert cores_of(api) == {"job-1-0": ("9", "9"), "job-1-1": ("9", "9")}
    assert sorted(resizes_of(api)) == ["job-1-0", "job-1-1"]
    assert (api.status(job)["phase"], api.status(job)["cores"]) == ("Running", 18)


async def test_request_and_limit_move_together_on_the_very_pod_that_was_seen() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), operator(api):
        job = api.submit(replicas=1, cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        pod = api.item(f"{PODS}/job-1-0")
        grant(api, job, 9)
        await until_ended(api, job)
    (body,) = [call.body for call in api.calls if call.path.endswith("/resize")]
    assert body["spec"] == {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "9"}, "limits": {"cpu": "9"}}}]
    }
    assert body["metadata"]["uid"] == pod["metadata"]["uid"]
    assert "resourceVersion" in body["metadata"]


async def test_growth_deferred_beyond_its_deadline_is_taken_back_and_never_applied_later() -> None:
    api = FakeCluster()
    deferring = resizing_nodes(api, except_rank(1, defers))
    async with rest_of_cluster(api, exit_code=never_ends), deferring as nodes, operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 9)
        await api.until(lambda: (api.status(job).get("resize") or {}).get("state") == "Deferred")
        resize = await until_ended(api, job)
        assert (resize["state"], resize["reason"], resize["coresPerReplica"]) == ("Refused", "DeadlineExceeded", 4)
        assert "job-1-1 (Node didn't have enough resource: cpu)" in resize["message"]
        nodes.answer = applies  # there is room now
        nodes.look_again()
        await asyncio.sleep(600)
        assert cores_of(api) == {"job-1-0": ("4", "4"), "job-1-1": ("4", "4")}
        assert (1, "9") not in nodes.applied
    assert api.status(job)["phase"] == "Running"


async def test_what_a_static_cpu_manager_never_allows_is_refused_at_once() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api, never), operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 9, within_s=1000)
        resize = await until_ended(api, job)
    assert (resize["state"], resize["reason"], resize["coresPerReplica"]) == ("Refused", "StaticCPUManager", 4)
    assert cores_of(api) == {"job-1-0": ("4", "4"), "job-1-1": ("4", "4")}
    assert api.status(job)["phase"] == "Running"


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        pytest.param(Rejected(403, "Forbidden", "exceeded quota: cores"), "QuotaExceeded", id="quota"),
        pytest.param(
            Rejected(403, "Forbidden", "node didn't have enough allocatable resources: cpu"), "NodeTooSmall", id="node"
        ),
        pytest.param(Rejected(422, "Invalid", "Pod QOS Class may not change"), "ResizeRefused", id="validation"),
        pytest.param(
            Rejected(422, "Invalid", "Pod running on node without support for resize"),
            "ResizeUnsupported",
            id="old node",
        ),
        pytest.param(
            error_from_answer(404, NO_ROUTE),
            "ResizeUnsupported",
            id="old API server",
        ),
    ],
)
async def test_one_rank_that_the_api_server_refuses_takes_the_others_back(refusal: Exception, reason: str) -> None:
    api = FakeCluster()

    def admit(path: str, body: Json) -> None:
        if path.endswith("job-1-1"):
            raise refusal

    api.admit_resize = admit
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 9)
        resize = await until_ended(api, job)
    assert (resize["state"], resize["reason"], resize["coresPerReplica"]) == ("Refused", reason, 4)
    assert cores_of(api) == {"job-1-0": ("4", "4"), "job-1-1": ("4", "4")}
    assert api.status(job)["phase"] == "Running"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            lambda pod: pod["spec"]["containers"][0].update(
                resizePolicy=[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
            ),
            "RestartContainer",
            id="a change would restart it",
        ),
        pytest.param(
            lambda pod: pod["status"]["containerStatuses"][0].update(resources=None),
            "ResizeUnsupported",
            id="its kubelet does not say what it has",
        ),
        pytest.param(lambda pod: pod["status"].update(qosClass="BestEffort"), "BestEffort", id="best effort"),
        pytest.param(
            lambda pod: pod["spec"].update(
                initContainers=[{"name": "copy", "resources": {"requests": {"cpu": "16"}}}],
            ),
            "AskedAnyway",
            id="an init container asks for more",
        ),
    ],
)
async def test_pods_that_cannot_be_resized_are_never_touched(change: Any, reason: str) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        await api.until(
            lambda: all("resources" in pod["status"]["containerStatuses"][0] for pod in api.pods().values())
        )
        api.change(f"{PODS}/job-1-1", change)
        await asyncio.sleep(1)  # the operator has seen it
        grant(api, job, 9)
        resize = await until_ended(api, job)
    assert (resize["state"], resize["reason"]) == ("Refused", reason)
    assert resizes_of(api) == []


async def test_another_pod_of_that_name_is_not_taken_for_a_refusal() -> None:
    api = FakeCluster()

    def admit(path: str, body: Json) -> None:
        if len(resizes_of(api)) == 1:
            raise Rejected(
                422, "Invalid", 'Pod "job-1-0" is invalid: metadata.uid: Invalid value: "x": field is immutable'
            )

    api.admit_resize = admit
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 9)
        assert (await until_ended(api, job))["state"] == "Done"


async def test_somebody_else_who_changed_a_pod_first_is_seen_before_the_next_try() -> None:
    api = FakeCluster()

    def interfere(path: str, body: Json) -> None:
        if path.endswith("job-1-0") and len(resizes_of(api)) <= 2:
            api.change(path, lambda pod: pod["metadata"].update(annotations={"seen": str(api.version)}))
            api._check(path, body["metadata"])

    api.admit_resize = interfere
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 9)
        assert (await until_ended(api, job))["state"] == "Done"


async def test_no_rank_grows_any_more_once_its_job_is_seen_to_have_changed() -> None:
    api = FakeCluster()

    def suspend(path: str, body: Json) -> None:
        if len(resizes_of(api)) == 1:
            api.change(f"{JOBS}/job", lambda item: item["spec"].update(suspend=True))

    api.admit_resize = suspend
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api), operator(api):
        job = api.submit(replicas=64, cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 9)
        await until_phase(api, job, "Suspended")
    assert 1 <= len(resizes_of(api)) < 64


async def test_a_shrink_is_done_once_the_kubelets_say_so_however_long_that_takes() -> None:
    api = FakeCluster()

    def waits(pod: Json, rank: int) -> None:
        return

    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api, waits) as nodes, operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Running")
        grant(api, job, 2)
        await asyncio.sleep(300)
        assert api.status(job)["resize"]["state"] == "Resizing"
        nodes.answer = applies
        nodes.look_again()
        assert (await until_ended(api, job))["coresPerReplica"] == 2


async def test_a_job_without_a_grant_costs_no_request_more() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, run_s=lambda attempt, rank: 50.0), operator(api):
        job = api.submit(cpusPerReplica="auto")
        await until_phase(api, job, "Succeeded")
    assert resizes_of(api) == []
    assert "resize" not in api.status(job)


# --- the operator dies ------------------------------------------------------------------------------------------------


async def carry_out(api: FakeCluster, lives: list[int], answer: Any) -> ResizingNodes:
    """One grant, by processes that live for so many writes each; all of them are over once it has ended."""
    async with rest_of_cluster(api, exit_code=never_ends), resizing_nodes(api, answer) as nodes:
        job = api.submit(cpusPerReplica="auto", replicas=3)
        async with operator(api):
            await until_phase(api, job, "Running")
        grant(api, job, 9)
        for last_write in [*lives, 10_000]:
            wire = Wire(api, last_write=last_write)
            async with operator(api, wire=wire):
                ends = [asyncio.create_task(wire.dead.wait()), asyncio.create_task(until_ended(api, job))]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in ends:
                    task.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.sleep(60)
        assert api.status(job)["phase"] == "Running"
    return nodes


@pytest.mark.parametrize("last_write", range(1, 9))
@pytest.mark.parametrize("again", [False, True], ids=["once", "again and again"])
async def test_an_operator_killed_while_it_resizes_leaves_nothing_half_done(last_write: int, *, again: bool) -> None:
    api = FakeCluster()
    await carry_out(api, [last_write] * (12 if again else 1), applies)
    assert set(cores_of(api).values()) == {("9", "9")}
    assert api.status(f"{JOBS}/job")["resize"]["state"] == "Done"


@pytest.mark.parametrize("last_write", range(1, 9))
@pytest.mark.parametrize("answer", [defers, never], ids=["deferred", "infeasible"])
async def test_an_operator_killed_while_it_gives_up_leaves_nothing_to_be_applied_later(
    last_write: int, answer: Any
) -> None:
    api = FakeCluster()
    await carry_out(api, [last_write] * 6, except_rank(2, answer))
    assert set(cores_of(api).values()) == {("4", "4")}
    assert api.status(f"{JOBS}/job")["resize"]["state"] == "Refused"
