"""The operator when others write first, the API server is slow or away, or the Lease is lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping

import pytest

from coda.errors import CodaError, Conflict, Outage
from coda_kube.api.client import MERGE, AlreadyExists
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_PLAN, FINALIZER
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import JOBS, PODS, FakeCluster
from tests.operator_tests.operators import Wire, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster


def failing(times: int, error: CodaError, *, verb: str) -> Callable[[Call], None]:
    """A hook that lets the first `times` requests of that verb fail."""
    left = [times]

    def before(call: Call) -> None:
        if call.verb == verb and left[0] > 0:
            left[0] -= 1
            raise error

    return before


async def test_a_conflict_is_decided_again_at_once() -> None:
    api = FakeCluster()

    def label_first(call: Call) -> None:
        if call.verb == "apply":
            api.before = None
            api.change(job, lambda item: item["metadata"].update(labels={"touched": "true"}))

    async with rest_of_cluster(api) as rest, operator(api) as process:
        rest.plans = False
        api.before = label_first
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Queued", timeout_s=0.5)
        assert process.count("coda_operator_reconcile_errors_total") == 0


async def test_endless_conflicts_are_no_hot_loop() -> None:
    api = FakeCluster()
    api.before = failing(10_000, Conflict("somebody else was faster"), verb="apply")
    async with rest_of_cluster(api), operator(api):
        api.submit()
        await asyncio.sleep(60)
        tries = len(api.writes())
    assert tries <= 6 * 3  # three at once, after 0, 1, 3, 7, 15 and 31 s


async def test_finalizers_of_others_are_kept() -> None:
    api = FakeCluster()

    def add_another(call: Call) -> None:
        if call.verb == "patch":
            api.before = None
            api.change(job, lambda item: item["metadata"].setdefault("finalizers", []).append("example.com/other"))

    api.before = add_another
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Running")
        assert api.item(job)["metadata"]["finalizers"] == ["example.com/other", FINALIZER]
        api.before = add_another
        api.end(job)
        await api.until(lambda: FINALIZER not in api.item(job)["metadata"]["finalizers"])
        assert set(api.item(job)["metadata"]["finalizers"]) == {"example.com/other"}


async def test_a_late_watch_is_not_taken_for_pods_that_are_gone() -> None:
    """A new leader whose watch of pods lags behind that of jobs asks before it rolls back."""
    api = FakeCluster()
    leads = [False]
    wire = Wire(api, deaf_to="/api/v1/pods")
    async with (
        rest_of_cluster(api, exit_code=lambda attempt, rank: None),
        operator(api, wire=wire, may_write=lambda: leads[0]),
    ):
        async with operator(api):
            job = api.submit()
            await api.until(lambda: api.status(job).get("phase") == "Running")
        leads[0] = True
        api.change(job, lambda item: item["metadata"].update(labels={"touched": "true"}))
        await asyncio.sleep(60)
        assert api.status(job)["phase"] == "Running"


async def test_a_job_is_not_let_go_while_a_late_watch_hides_its_pods() -> None:
    api = FakeCluster()
    leads = [False]
    wire = Wire(api, deaf_to="/api/v1/pods")
    async with (
        rest_of_cluster(api, exit_code=lambda attempt, rank: None),
        operator(api, wire=wire, may_write=lambda: leads[0]),
    ):
        async with operator(api):
            job = api.submit()
            await api.until(lambda: api.status(job).get("phase") == "Running")
        leads[0] = True
        api.end(job)
        await api.until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in api.pods().values()))
        assert len(api.pods()) == 2
        assert FINALIZER in api.item(job)["metadata"]["finalizers"]


async def test_a_pod_that_was_there_and_is_gone_when_looked_at_is_made_without_delay() -> None:
    api = FakeCluster()
    already = [AlreadyExists(409, "AlreadyExists", "pods job-1-0 already exists")]

    def exists_already(call: Call) -> None:
        if call.verb == "create" and call.path == PODS and already:
            raise already.pop()

    api.before = exists_already
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=1)
        await api.until(lambda: api.status(job).get("phase") == "Starting", timeout_s=0.5)
        assert api.status(job)["attempt"] == 1


async def test_a_job_that_is_gone_is_forgotten_though_no_watch_told() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api) as process:
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Running")
        del api._items[api._key(job)]
        for name in api.pods():
            api.end(f"{PODS}/{name}")
        await api.until(lambda: api.pods() == {}, timeout_s=60)
        await asyncio.sleep(1)
        assert process.cluster.jobs.by_key == {}
        assert process.count("coda_operator_reconcile_errors_total") == 0


@pytest.mark.parametrize("error", [Outage("HTTP 429: too many requests"), Outage("POST: TimeoutError")], ids=str)
@pytest.mark.parametrize("verb", ["dry run", "create", "apply", "patch", "get"])
async def test_an_outage_costs_time_but_no_attempt(verb: str, error: Outage) -> None:
    api = FakeCluster()
    api.before = failing(5, error, verb=verb)  # 15 s: less than the bind deadline
    async with rest_of_cluster(api), operator(api):
        job = api.submit(replicas=4)
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=200)
        assert api.status(job)["attempt"] == 1


async def test_a_process_whose_lease_lapsed_writes_nothing_and_goes_on_when_it_is_back() -> None:
    """An API server that is slow for some seconds: the Lease lapses and is renewed after all. Nothing was missed."""
    api = FakeCluster()
    held = [True]
    async with rest_of_cluster(api), operator(api, may_write=lambda: held[0]):
        job = api.submit(replicas=2)
        await api.until(lambda: api.status(job).get("phase") == "Starting")
        held[0] = False
        asked = len(api.calls)
        await asyncio.sleep(20)
        assert {call.path for call in api.calls[asked:]} <= {"/api/v1/namespaces/default/events"}  # of what it did
        assert api.status(job)["phase"] == "Starting"
        held[0] = True
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=60)


async def test_pods_of_a_suspended_job_go_soon_after_a_lapse_in_which_each_pod_told_something() -> None:
    """As after etcd stood still: the status says Suspended, pods are left, and the event of each finds no Lease."""
    api = FakeCluster()
    held = [True]

    def lapse_at_the_first_delete(call: Call) -> None:
        if call.verb == "delete":
            api.before = None
            held[0] = False
            raise Outage("DELETE: TimeoutError")

    api.before = lapse_at_the_first_delete
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api, may_write=lambda: held[0]):
        job = api.submit(replicas=16)
        await api.until(lambda: api.status(job).get("phase") == "Running")
        api.edit(job, suspend=True)
        await api.until(lambda: not held[0])
        for path in [f"{PODS}/{name}" for name in api.pods()]:
            if api.exists(path):
                api.change(path, lambda pod: pod["metadata"].update(annotations={"touched": "true"}))
            await asyncio.sleep(0.05)
        held[0] = True
        await api.until(
            lambda: all("deletionTimestamp" in pod["metadata"] for pod in api.pods().values()), timeout_s=4.5
        )
        assert api.status(job)["phase"] == "Suspended"


async def test_a_lease_lost_in_mid_launch_stops_the_creates() -> None:
    api = FakeCluster()
    held = [True]

    def lose_it_at_the_tenth_pod(call: Call) -> None:
        if call.verb == "create" and call.path == PODS and len(api.pods()) == 10:
            held[0] = False

    api.before = lose_it_at_the_tenth_pod
    async with rest_of_cluster(api), operator(api, may_write=lambda: held[0]):
        api.submit(replicas=64)
        await asyncio.sleep(30)
        assert len(api.pods()) <= 10 + 8  # those whose turn had come


async def test_a_big_launch_holds_up_no_other_status() -> None:
    """Creates that hang take the slots of creates only."""
    api = FakeCluster()
    slow = asyncio.Event()
    create = api.create

    async def slow_create(path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        if path == PODS and not query:
            await slow.wait()
        return await create(path, body, query)

    api.create = slow_create  # type: ignore[method-assign]  # this server is slow today
    async with rest_of_cluster(api), operator(api):
        big = api.submit("big", replicas=64)
        await api.until(lambda: api.status(big).get("phase") == "Queued")
        await asyncio.sleep(1)
        small = api.submit("small", suspend=True)
        await api.until(lambda: api.status(small).get("phase") == "Suspended", timeout_s=0.5)
        slow.set()


async def test_a_create_that_arrives_after_its_time_never_becomes_part_of_another_plan() -> None:
    """The answer never came, the user edited the job meanwhile, and the API server executes the request after all."""
    api = FakeCluster()
    create = api.create
    late: list[asyncio.TimerHandle] = []

    async def create_late(path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        if path == PODS and not query and not late:
            arrive = functools.partial(api.set, PODS, body | {"status": {"phase": "Pending"}})
            late.append(asyncio.get_running_loop().call_later(3.0, arrive))
            api.edit(f"{JOBS}/job", template={"spec": {"containers": [{"name": "main", "image": "train:2"}]}})
            raise Outage("POST: TimeoutError")
        return await create(path, body, query)

    api.create = create_late  # type: ignore[method-assign]  # this server is slow today
    async with rest_of_cluster(api, run_s=lambda attempt, rank: 10.0), operator(api):
        job = api.submit(replicas=2)
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=100)
        plan = api.status(job)["placement"]["planId"]
    ended = [pod for pod in api.pods().values() if pod["status"]["phase"] == "Succeeded"]
    assert [pod["metadata"]["annotations"][ANNOTATION_PLAN] for pod in ended] == [plan, plan]
    assert {pod["spec"]["containers"][0]["image"] for pod in ended} == {"train:2"}
    assert [pod["metadata"]["name"] for event, pod in api.history("pods") if event == "DELETED"] == ["job-1-0"]


async def test_a_job_whose_finalizer_was_taken_away_gets_it_back_before_its_pods() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest, operator(api):
        rest.plans = False
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Queued")
        api.change(job, lambda item: item["metadata"].update(finalizers=["example.com/other"]))
        await api.until(lambda: FINALIZER in api.item(job)["metadata"]["finalizers"], timeout_s=1)
        rest.plans = True
        rest.act()
        await api.until(lambda: api.status(job).get("phase") == "Running")
        assert api.item(job)["metadata"]["finalizers"] == ["example.com/other", FINALIZER]


async def test_a_webhook_that_strips_our_finalizer_is_no_hot_loop() -> None:
    """The write succeeds and changes nothing: the job goes on without it."""
    api = FakeCluster()
    patch = api.patch

    async def strip(path: str, body: Json, content_type: str = MERGE) -> Json:
        if "finalizers" in (body.get("metadata") or {}):
            body = {"metadata": body["metadata"] | {"finalizers": []}}
        return await patch(path, body, content_type)

    api.patch = strip  # type: ignore[method-assign]  # a webhook, not a method
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api):
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Running")
        await asyncio.sleep(60)
        assert sum(call.verb == "patch" for call in api.calls) < 20
