"""One job's status cannot be written: that harms nobody but this job."""

import asyncio
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.api.client import Rejected, TooBusy
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, job_json, node_json, placement
from tests.extender.replicas import placement_of, replica, state_of, status

TOO_LARGE = Outage("HTTP 500: etcdserver: request is too large", may_have_worked=False)
LATER = time_from_seconds(1_700_000_100)


@pytest.fixture
async def api() -> FakeApi:
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


def refuse(api: FakeApi, job: str, error: Exception = TOO_LARGE) -> None:
    def fail(call: Call) -> None:
        if call.verb in ("apply", "patch") and f"/{job}/" in call.path:
            raise error

    api.before = fail


def events(api: FakeApi) -> list[Json]:
    return [call.body for call in api.writes("create") if call.path.endswith("/events")]


@pytest.mark.parametrize(
    "error",
    [TOO_LARGE, Rejected(422, "Invalid", "spec.x: Required"), Rejected(403, "Forbidden", "denied by a webhook")],
    ids=["too large", "invalid", "forbidden"],
)
async def test_a_job_whose_placement_cannot_be_written_leaves_its_room_to_others(
    api: FakeApi, error: Exception
) -> None:
    refuse(api, "padded", error)
    api.set(JOBS, job_json("padded"))
    api.set(JOBS, job_json("honest", queuedTime=LATER))
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "honest") == "Released")
        await api.until(lambda: bool(events(api)))
        assert one.count("coda_planner_unwritable_jobs") == 1
    (event,) = events(api)
    assert (event["reason"], event["involvedObject"]["name"]) == ("StatusUnwritable", "padded")
    assert str(error) in event["message"]


async def test_a_job_that_can_be_written_again_starts(api: FakeApi) -> None:
    refuse(api, "padded")
    api.set(JOBS, job_json("padded"))
    async with replica(api) as one:
        await api.until(lambda: bool(events(api)))
        api.before = None
        await api.until(lambda: status(api, "padded").get("pending", {}).get("code") == "StatusUnwritable")
        await api.until(lambda: state_of(api, "padded") == "Released")
        assert one.count("coda_planner_unwritable_jobs") == 0


async def test_a_job_that_somebody_changes_all_the_time_leaves_its_room_to_others(api: FakeApi) -> None:
    def touch(call: Call) -> None:
        if call.verb == "apply" and "/touched/" in call.path:
            api.change(f"{JOBS}/touched", lambda item: item["metadata"].update(annotations={"n": str(api.version)}))

    api.before = touch
    api.set(JOBS, job_json("touched"))
    api.set(JOBS, job_json("honest", queuedTime=LATER))
    async with replica(api):
        await api.until(lambda: state_of(api, "honest") == "Released")
        await api.until(lambda: bool(events(api)))
    (event,) = events(api)
    assert (event["reason"], event["involvedObject"]["name"]) == ("ChangedMeanwhile", "touched")


def codes_told(api: FakeApi) -> set[str]:
    return {call.body["status"]["pending"]["code"] for call in api.writes() if "pending" in call.body["status"]}


async def test_jobs_of_a_slow_namespace_are_told_that_writes_are_slow() -> None:
    """They are honest: only the API server, or a webhook, takes long."""
    api = SlowFor("slow", 1.0)
    for number in range(60):
        api.set(NODES, node_json(f"n{number}"))
        api.set(JOBS, job_json(f"slow-{number}"))
    async with replica(api) as one:
        await api.until(lambda: "StatusWriteSlow" in codes_told(api))
        assert one.count("coda_planner_unwritable_jobs") == 0
    assert "StatusUnwritable" not in codes_told(api)
    assert not events(api)


def nodes_told(api: FakeApi, job: str) -> int:
    told: int = status(api, job).get("pending", {}).get("numbers", {}).get("nodes_matching", 0)
    return told


async def test_a_job_is_not_blamed_while_the_api_server_is_too_busy(api: FakeApi) -> None:
    left = [6]

    def busy(call: Call) -> None:
        if call.verb == "apply" and "placement" in call.body["status"] and left[0]:
            left[0] -= 1
            raise TooBusy("HTTP 429: too many requests", may_have_worked=False)

    api.before = busy
    api.set(JOBS, job_json("honest"))
    async with replica(api) as one:
        await api.until(lambda: left[0] < 4)
        assert one.count("coda_planner_unwritable_jobs") == 0
        await api.until(lambda: state_of(api, "honest") == "Released")
    assert codes_told(api) <= {"StatusWriteSlow"}
    assert not events(api)


async def test_reasons_are_not_put_off_for_ever_longer_because_writes_are_slow() -> None:
    api = SlowFor("slow", 0.7)
    api.set(NODES, node_json("n0"))
    api.set(JOBS, job_json("slow", gpus=16))
    api.set(JOBS, job_json("other", gpus=16))
    async with replica(api):
        for number in range(1, 6):  # a reason is written every 3 s at most
            await api.until(lambda: nodes_told(api, "slow") == number, timeout_s=20.0)  # noqa: B023
            api.set(NODES, node_json(f"n{number}"))


async def test_a_new_leader_plans_beside_placements_that_it_can_neither_adopt_nor_drop(api: FakeApi) -> None:
    api.set(NODES, node_json("n2"))
    api.set(JOBS, job_json("padded", placement=placement("n1", epoch=0)))
    api.set(JOBS, job_json("honest", queuedTime=LATER))
    refuse(api, "padded")
    async with replica(api):
        await api.until(lambda: state_of(api, "honest") == "Released")
        assert placement_of(api, "honest")["nodes"] == ["n2"]  # the other node is withheld until the deadline
    refuse(api, "nobody")


async def test_a_placement_that_cannot_be_removed_counts_until_its_deadline_only(api: FakeApi) -> None:
    early = placement("n1", epoch=0, state="Committed", deadline_s=1.0)
    api.set(JOBS, job_json("padded", placement=early))
    api.set(JOBS, job_json("honest", queuedTime=LATER))
    refuse(api, "padded")
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "honest") == "Released")
        assert one.count("coda_planner_dropped_plans_total", reason="VOID") == 1
        assert one.cluster.guard.in_flight.pods() == ()


async def test_a_released_placement_that_nobody_uses_or_ends_is_dropped(api: FakeApi) -> None:
    api.set(JOBS, job_json("padded", placement=placement("n1", epoch=1, deadline_s=1.0)))
    async with replica(api) as one:
        await api.until(lambda: one.count("coda_planner_dropped_plans_total", reason="UNUSED") == 1)


async def test_a_reason_that_cannot_be_written_delays_no_other(api: FakeApi) -> None:
    refuse(api, "padded")
    api.set(JOBS, job_json("padded", gpus=16))
    async with replica(api):
        await asyncio.sleep(1.0)  # its tries are seldom by now
        for number in range(6):
            api.set(JOBS, job_json(f"large-{number}", gpus=16))
            await api.until(lambda: "pending" in status(api, f"large-{number}"), timeout_s=1.5)  # noqa: B023


class SlowFor(FakeApi):
    """Writes to the jobs of one name's beginning take long, as with a slow webhook."""

    def __init__(self, names: str, seconds: float) -> None:
        super().__init__()
        self._names, self._seconds = names, seconds
        self.sent: list[Json] = []  # bodies of the slow writes, when they begin

    async def apply(self, path: str, body: Json, **how: Any) -> Json:
        if path.split("/")[-2].startswith(self._names):
            self.sent.append(body)
            await asyncio.sleep(self._seconds)
        return await super().apply(path, body, **how)


async def test_slow_writes_delay_nobody_else() -> None:
    api = SlowFor("slow", 4.0)
    for number in range(20):
        api.set(NODES, node_json(f"n{number}"))
    for number in range(40):
        api.set(JOBS, job_json(f"slow-{number}"))
    async with replica(api):
        await asyncio.sleep(0.3)
        other = "/apis/coda.scheduler/v1alpha1/namespaces/other/trainingjobs"
        api.set(other, job_json("honest", gpus=1, queuedTime=LATER))
        answered = {"pending", "placement"}
        await api.until(lambda: bool(answered & api.item(f"{other}/honest")["status"].keys()), timeout_s=3.5)
        await api.until(lambda: any(state_of(api, f"slow-{number}") for number in range(40)))


async def test_a_job_whose_reason_is_being_written_is_not_overtaken_for_it() -> None:
    api = SlowFor("first", 0.2)
    api.set(JOBS, job_json("first"))
    api.set(JOBS, job_json("later", queuedTime=LATER))
    async with replica(api) as one:
        await api.until(lambda: bool(api.sent))  # there is no node, and the job is told so
        api.set(NODES, node_json("n1"))
        await api.until(lambda: state_of(api, "first") == "Released")
        assert placement_of(api, "later") == {}
        assert one.count("coda_planner_refused_writes_total", reason="busy") == 0


async def test_room_of_a_write_without_an_answer_is_not_given_away() -> None:
    api = SlowFor("slow", 1.5)
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("slow"))
    api.set(JOBS, job_json("next", queuedTime=LATER))
    async with replica(api):
        await api.until(lambda: state_of(api, "slow") == "Released")
        assert placement_of(api, "next") == {}
    assert not [call for call in api.writes() if "/next/" in call.path and call.body["status"].get("placement")]


async def test_a_placement_is_dropped_though_another_manager_owns_it_too(api: FakeApi) -> None:
    before = placement("gone", epoch=0, state="Committed")
    api.set(JOBS, job_json("gang", placement=before))
    api.reset_managers(f"{JOBS}/gang")
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert placement_of(api, "gang")["nodes"] == ["n1"]
    assert len([call for call in api.writes("patch") if "/gang/" in call.path]) == 1


async def test_a_reason_is_removed_though_another_manager_owns_it_too(api: FakeApi) -> None:
    told: Json = {"code": "InsufficientGPUs", "message": "old", "since": time_from_seconds(0)}
    api.set(JOBS, job_json("gang", phase="Suspended", pending=told))
    api.reset_managers(f"{JOBS}/gang")
    async with replica(api):
        await api.until(lambda: "pending" not in status(api, "gang"))
