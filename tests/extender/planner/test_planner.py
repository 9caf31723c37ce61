import asyncio
import time

import pytest

from coda.errors import Outage
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, placement, pod_json
from tests.extender.replicas import placement_of, replica, state_of, status


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


async def test_commits_a_gang_and_releases_it_by_one_write(api: FakeApi) -> None:
    for name in ("n1", "n2"):
        api.set(NODES, node_json(name))
    api.set(JOBS, job_json("gang", replicas=2))
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    (written,) = [call.body["status"]["placement"] for call in api.writes()]
    assert written["state"] == "Released"
    assert sorted(written["nodes"]) == ["n1", "n2"]
    assert (written["attempt"], written["generation"], written["epoch"], written["cpusPerReplica"]) == (1, 1, 1, 4)


async def test_a_gang_whose_pods_bring_volumes_has_ten_minutes_more_to_be_bound(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", gpus=16))
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    for name, volumes in (("slow", [scratch]), ("quick", [])):
        item = job_json(name)
        item["spec"]["template"] = {"spec": {"containers": [{"name": "main"}], "volumes": volumes}}
        api.set(JOBS, item)
    async with replica(api):
        await api.until(lambda: {state_of(api, name) for name in ("slow", "quick")} == {"Released"})
    lengths_s = {}
    for name in ("slow", "quick"):
        placed = status(api, name)["placement"]
        lengths_s[name] = seconds_from_time(placed["bindDeadline"]) - seconds_from_time(placed["committedTime"])
    assert lengths_s["slow"] - lengths_s["quick"] == pytest.approx(600.0)


async def test_a_job_that_cannot_start_is_told_why_once(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", gpus=4))
    api.set(JOBS, job_json("large"))
    async with replica(api):
        await api.until(lambda: "pending" in status(api, "large"))
        api.set(NODES, node_json("n2", gpus=2))
        api.set(JOBS, job_json("small", gpus=2))
        await api.until(lambda: state_of(api, "small") == "Released")
        await asyncio.sleep(0.05)
    about_large = [call for call in api.writes() if "/large/" in call.path]
    assert len(about_large) == 1
    pending = status(api, "large")["pending"]
    assert pending["code"] == "NeverFits"
    assert "8" in pending["message"]


async def test_how_long_a_job_waited_for_its_first_reason_is_measured_once(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", gpus=4))
    for name, generation in (("new", 1), ("edited", 2)):
        item = job_json(name)
        item["metadata"] |= {"creationTimestamp": time_from_seconds(time.time() - 40), "generation": generation}
        item["status"]["observedGeneration"] = generation
        api.set(JOBS, item)
    async with replica(api) as one:
        await api.until(lambda: all("pending" in status(api, name) for name in ("new", "edited")))
        await api.until(lambda: one.count("coda_planner_pending_writes_total") == 2)
        assert one.count("coda_planner_first_reason_delay_seconds_count") == 1
        assert 39 < one.count("coda_planner_first_reason_delay_seconds_sum") < 60


async def test_the_reason_goes_when_the_job_starts(api: FakeApi) -> None:
    api.set(JOBS, job_json("gang"))
    async with replica(api):
        await api.until(lambda: "pending" in status(api, "gang"))
        api.set(NODES, node_json("n1"))
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert "pending" not in status(api, "gang")


async def test_since_is_kept_while_the_code_stays(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(PODS, pod_json("foreign", gpus=8, cpu="1", node="n1"))
    since = time_from_seconds(1_700_000_123)
    told: Json = {"code": "InsufficientGPUs", "message": "old words", "since": since, "numbers": {}, "holders": []}
    api.set(JOBS, job_json("gang", pending=told))
    async with replica(api):
        await api.until(lambda: status(api, "gang")["pending"]["message"] != "old words")
    pending = status(api, "gang")["pending"]
    assert (pending["code"], pending["since"]) == ("InsufficientGPUs", since)


async def test_a_suspended_job_keeps_no_reason(api: FakeApi) -> None:
    stale = placement("gone", attempt=1)
    told: Json = {"code": "InsufficientGPUs", "message": "old", "since": time_from_seconds(0)}
    api.set(JOBS, job_json("gang", phase="Suspended", attempt=2, placement=stale, pending=told))
    async with replica(api):
        await api.until(lambda: "pending" not in status(api, "gang"))
    assert placement_of(api, "gang") == stale


async def test_somebody_who_writes_first_causes_another_cycle(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang"))

    def interfere(call: Call) -> None:
        if call.verb == "apply":
            api.before = None
            api.change(f"{JOBS}/gang", lambda item: item["status"].update(message="written first"))

    api.before = interfere
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        assert one.count("coda_planner_refused_writes_total", reason="conflict") == 1
    assert status(api, "gang")["message"] == "written first"


async def test_a_gang_edited_while_it_is_decided_on_is_not_committed_as_it_was(api: FakeApi) -> None:
    for name in ("n1", "n2"):
        api.set(NODES, node_json(name))
    api.set(JOBS, job_json("gang", replicas=2))

    def edit(call: Call) -> None:
        if call.verb == "apply":
            api.before = None
            api.change(f"{JOBS}/gang", shrink)

    def shrink(item: Json) -> None:
        item["spec"]["replicas"] = 1
        item["metadata"]["generation"] = item["status"]["observedGeneration"] = 2

    api.before = edit
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert len(placement_of(api, "gang")["nodes"]) == 1
    assert placement_of(api, "gang")["generation"] == 2


async def test_an_outage_is_waited_out(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang"))
    failures = iter([Outage("HTTP 500: no leader"), Outage("HTTP 503: overloaded")])

    def fail(call: Call) -> None:
        if call.verb == "apply" and (error := next(failures, None)) is not None:
            raise error

    api.before = fail
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_a_job_backing_off_says_so_and_starts_when_it_is_over(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    not_before_s = time.time() + 0.4
    api.set(JOBS, job_json("gang", attempt=2, notBefore=time_from_seconds(not_before_s)))
    async with replica(api):
        await api.until(lambda: status(api, "gang").get("pending", {}).get("code") == "BackingOff")
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert time.time() >= not_before_s - 0.001


async def test_nothing_is_asked_or_written_while_nothing_changes(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("runs"))
    api.set(JOBS, job_json("waits", replicas=4))
    async with replica(api):
        await api.until(lambda: state_of(api, "runs") == "Released" and "pending" in status(api, "waits"))
        await asyncio.sleep(0.05)
        api.calls.clear()
        await asyncio.sleep(0.3)
        assert {call.path.split("/")[-2] for call in api.calls} == {"leases"}


async def test_a_job_edited_while_the_operator_is_away_says_what_it_waits_for(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    item = job_json("gang", placement=placement("n1", epoch=1, state="Committed"))
    item["metadata"]["generation"] = 2
    api.set(JOBS, item)
    async with replica(api):
        await api.until(lambda: "pending" in status(api, "gang"))
        pending = status(api, "gang")["pending"]
        assert (pending["code"], pending["generation"]) == ("Edited", 2)
        api.set(JOBS, job_json("next"))
        await api.until(lambda: state_of(api, "next") == "Released")
        api.change(f"{JOBS}/gang", lambda item: item["status"].update(observedGeneration=2))
        await api.until(lambda: status(api, "gang")["pending"]["code"] != "Edited")


async def test_pods_that_come_and_go_start_no_cycle_while_no_job_awaits_one(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang"))
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        await api.until(lambda: not one.cluster.changed.is_set())
        before = one.count("coda_planner_round_duration_seconds_count")
        for number in range(20):
            api.set(PODS, pod_json(f"foreign-{number}", cpu="1", node="n1"))
            await api.until(lambda: len(one.cluster.state.pod_by_id) > number)  # noqa: B023 - called at once
            await api.until(lambda: not one.cluster.changed.is_set())
        assert one.count("coda_planner_round_duration_seconds_count") <= before + 1
        api.set(JOBS, job_json("first-to-wait"))
        await api.until(lambda: "pending" in status(api, "first-to-wait"))


async def test_a_queue_that_emptied_is_shown_as_empty(api: FakeApi) -> None:
    api.set(JOBS, job_json("gang"))
    async with replica(api) as one:
        await api.until(lambda: one.count("coda_queue_gpus_wanted") > 0)
        api.change(f"{JOBS}/gang", lambda item: item["status"].update(phase="Suspended"))
        await api.until(lambda: one.count("coda_queue_gpus_wanted") == 0 and "pending" not in status(api, "gang"))


async def test_a_system_priority_class_of_a_user_does_not_go_first(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("early"))
    late = job_json("late", queuedTime=time_from_seconds(1_700_000_100))
    late["status"]["request"]["priority"] = 2_000_000_000
    api.set(JOBS, late)
    async with replica(api):
        await api.until(lambda: state_of(api, "early") == "Released" and "pending" in status(api, "late"))


async def test_a_reason_names_no_job_of_another_namespace(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    other = "/apis/coda.scheduler/v1alpha1/namespaces/other/trainingjobs"
    for number, where in enumerate((other, other, JOBS)):
        running = job_json(f"secret-{number}", gpus=2, phase="Running", placement=placement("n1", plan=f"p{number}"))
        api.set(where, running)
    api.set(JOBS, job_json("waits"))
    async with replica(api):
        await api.until(lambda: "pending" in status(api, "waits"))
        pending = status(api, "waits")["pending"]
        assert pending["holders"] == ["default/secret-2", "other/*"]
        assert "other/secret" not in str(pending)
        writes = len(api.writes())
        api.set(JOBS, job_json("again", gpus=4))
        await api.until(lambda: "pending" in status(api, "again"))
        assert len(api.writes()) == writes + 1  # the redacted reason is not written again
