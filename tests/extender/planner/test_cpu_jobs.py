"""CPU jobs: their pods are released where nothing is in the way, and evicted for a training job."""

from __future__ import annotations

import asyncio
import time

import pytest

from coda.errors import Conflict, Outage
from coda_kube.api.client import TooBusy
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BORROWS
from coda_kube.objects.pods.node_terms import pin_of
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.cpu_pods import (
    CODA,
    OTHER,
    OWNER,
    bind,
    events,
    evictions,
    fill,
    gated,
    is_released,
    pod,
    releases,
)
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, pod_json
from tests.extender.replicas import replica, state_of


@pytest.fixture
async def api() -> FakeApi:
    """One node of 48 cores, 32 of them the GPU array's."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


async def test_a_pod_is_released_to_a_node_and_only_that_one_takes_it(api: FakeApi) -> None:
    api.set(NODES, node_json("n2"))
    async with replica(api) as one:
        api.set(PODS, gated("work", cpu=4))
        await api.until(lambda: is_released(api, "work"))
        node = pin_of(pod(api, "work")["spec"])
        answer = one.ask(pod(api, "work"), ["n1", "n2"])
        assert [*answer.passed] == [node]
        assert not pod(api, "work")["metadata"]["annotations"].get(ANNOTATION_BORROWS)
        assert one.count("coda_planner_releases_total") == 1


async def test_a_pod_that_waits_takes_nothing_and_one_that_was_released_does(api: FakeApi) -> None:
    async with replica(api) as one:
        api.set(PODS, gated("first", cpu=30))
        await api.until(lambda: is_released(api, "first"))
        api.set(PODS, gated("second", cpu=30, creationTimestamp="2026-01-01T00:00:01Z"))
        foreign = pod_json("foreign", cpu="20")
        assert [*one.ask(foreign, ["n1"]).passed] == []
        bind(api, "first")
        api.change(f"{PODS}/first", lambda item: item["status"].update(phase="Succeeded"))
        await api.until(lambda: is_released(api, "second"))
        assert releases(api) == 2


async def test_the_room_of_a_released_pod_stays_withheld_under_the_next_leader(api: FakeApi) -> None:
    async with replica(api):
        api.set(PODS, gated("first", cpu=30))
        await api.until(lambda: is_released(api, "first"))
    async with replica(api, "two") as two:
        api.set(PODS, gated("second", cpu=10, creationTimestamp="2026-01-01T00:00:01Z"))
        api.set(PODS, gated("third", cpu=10, creationTimestamp="2026-01-01T00:00:02Z"))
        await api.until(lambda: is_released(api, "second"))
        assert not is_released(api, "third")
        assert [*two.ask(pod(api, "first"), ["n1"]).passed] == ["n1"]


@pytest.mark.parametrize(
    "error", [Conflict("changed"), Outage("no answer"), TooBusy("429")], ids=lambda e: type(e).__name__
)
async def test_a_release_that_does_not_work_is_tried_again(api: FakeApi, error: Exception) -> None:
    failures = [error, error]

    def before(call: Call) -> None:
        if call.verb == "patch" and call.path.startswith(PODS) and failures:
            raise failures.pop()

    api.before = before
    async with replica(api):
        api.set(PODS, gated("work", cpu=4))
        await api.until(lambda: is_released(api, "work"), timeout_s=30)
    assert not failures


async def test_a_release_whose_answer_was_lost_counts_once(api: FakeApi) -> None:
    """It is stored, nobody knows, and the room is taken all the same."""

    def after(call: Call) -> None:
        if call.verb == "patch" and call.path == f"{PODS}/first" and not is_released(api, "first"):
            api.change(f"{PODS}/first", lambda item: merge(item, call.body))
            raise Outage("no answer")

    def merge(item: Json, body: Json) -> None:
        item["metadata"]["annotations"] |= body["metadata"]["annotations"]
        item["spec"] |= body["spec"]

    api.before = after
    async with replica(api):
        api.set(PODS, gated("first", cpu=30))
        api.set(PODS, gated("second", cpu=30, creationTimestamp="2026-01-01T00:00:01Z"))
        await api.until(lambda: is_released(api, "first"))
        api.set(PODS, gated("third", cpu=10, creationTimestamp="2026-01-01T00:00:02Z"))
        await api.until(lambda: is_released(api, "third"))
        assert not is_released(api, "second")


async def test_a_pod_whose_place_is_taken_every_time_is_told_so(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign pods in flight land there between each decision and its write."""
    monkeypatch.setattr("coda_extender.cpu_jobs.pod_writer.TOLD_AFTER_S", 0.6)
    async with replica(api) as one:
        with monkeypatch.context() as overtaken:
            overtaken.setattr(one.cluster, "fits_at_once", lambda _job, _nodes: False)
            api.set(PODS, gated("work", cpu=4))
            await api.until(lambda: bool(events(api)))
        await api.until(lambda: is_released(api, "work"))
        (event,) = events(api)
        assert (event["reason"], event["involvedObject"]["name"]) == ("PlaceTaken", "work")
        assert "its place on n1 was taken" in event["message"]


async def test_as_few_borrowers_as_needed_are_evicted_and_the_job_starts_when_they_are_gone(api: FakeApi) -> None:
    async with replica(api, policy=CODA) as one:
        borrowers = await fill(api)
        assert len(borrowers) == 8
        api.set(JOBS, job_json("train"))  # 4 cores
        await api.until(lambda: state_of(api, "train") == "Committed")
        (evicted,) = evictions(api)
        assert evicted in borrowers
        api.remove(f"{PODS}/{evicted}")
        await api.until(lambda: state_of(api, "train") == "Released")
        assert evictions(api) == [evicted]
        assert one.count("coda_planner_stops_total", cause="Reclaim") == 1
        await api.until(lambda: bool(events(api)))
        (event,) = events(api)
        assert (event["reason"], event["involvedObject"]["name"]) == ("Reclaimed", evicted)


@pytest.mark.parametrize("ignores", [True, False])
async def test_the_pods_of_a_job_borrow_once_it_is_known_to_ignore_evictions(api: FakeApi, *, ignores: bool) -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}] * ignores
    owner = OWNER | {"apiVersion": "batch/v1", "kind": "Job"}
    async with replica(api, policy=CODA):
        for number in range(5):
            api.set(PODS, gated(f"web-{number}", cpu=4, ownerReferences=[owner]))
        await api.until(lambda: sum(is_released(api, f"web-{number}") for number in range(5)) == 4)
        job = {"metadata": {"name": "web", "uid": "uid-web"}, "spec": {"podFailurePolicy": {"rules": rules}}}
        api.set("/apis/batch/v1/namespaces/default/jobs", job)
        api.set(PODS, gated("own", cpu=0, creationTimestamp="2026-01-01T00:00:09Z"))
        await api.until(lambda: is_released(api, "own"))
        if ignores:
            await api.until(lambda: all(is_released(api, f"web-{number}") for number in range(5)))
        else:
            assert sum(is_released(api, f"web-{number}") for number in range(5)) == 4


async def test_the_successor_of_an_evicted_pod_is_first_in_line_also_under_the_next_leader(api: FakeApi) -> None:
    """Another pod has waited for longer than the successor exists."""
    async with replica(api, policy=CODA):
        await fill(api)
        waits = time_from_seconds(time.time() - 60)
        api.set(PODS, gated("other", cpu=4, creationTimestamp=waits, ownerReferences=[OTHER]))
        api.set(JOBS, job_json("train"))
        await api.until(lambda: bool(evictions(api)))
        await api.until(lambda: "deletionTimestamp" in pod(api, evictions(api)[0])["metadata"])
        (evicted,) = [call for call in api.writes("create") if call.path == f"{PODS}/{evictions(api)[0]}/eviction"][1:]
        assert api.calls.index(record_of(api)) < api.calls.index(evicted)
    api.remove(f"{PODS}/{evictions(api)[0]}")
    async with replica(api, "two", policy=CODA):
        now = time_from_seconds(time.time())
        api.set(PODS, gated("successor", cpu=4, creationTimestamp=now, ownerReferences=[OWNER]))
        await api.until(lambda: state_of(api, "train") == "Released")
        api.remove(f"{JOBS}/train")
        await api.until(lambda: is_released(api, "successor"))
        assert not is_released(api, "other")
        queued = pod(api, "successor")["metadata"]["annotations"]["coda.scheduler/queued-time"]
        assert queued.startswith("2026-01-01T00:00:00")


@pytest.mark.parametrize("worked", [True, False])
async def test_an_eviction_without_an_answer_leaves_a_place_only_if_it_worked(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, *, worked: bool
) -> None:
    monkeypatch.setattr("coda_extender.cpu_jobs.reclaims.DOUBT_S", 0.2)

    def lose(call: Call) -> None:
        if call.path.endswith("/eviction") and "dryRun" not in call.body["deleteOptions"]:
            if worked:
                api.change(
                    call.path.removesuffix("/eviction"),
                    lambda item: item["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
                )
            raise Outage("no answer")

    async with replica(api, policy=CODA) as one:
        await fill(api)
        api.before = lose
        api.set(JOBS, job_json("train"))
        await api.until(lambda: bool(evictions(api)))
        (asked,) = evictions(api)
        places = one.cluster.state.cpu_jobs.places
        assert [*places.record()] == ["uid-web"]
        api.remove(f"{JOBS}/train")  # so that nobody is evicted again
        await asyncio.sleep(0.4)  # nothing but time ends the doubt
        assert evictions(api) == [asked]
        assert [*places.record()] == (["uid-web"] if worked else [])
        records = [call for verb in ("create", "apply") for call in api.writes(verb) if "/configmaps" in call.path]
        assert ("uid-web" in records[-1].body["data"]["places"]) is worked


def record_of(api: FakeApi) -> Call:
    (call,) = [call for call in api.writes("create") if call.path.endswith("/configmaps")]
    return call
