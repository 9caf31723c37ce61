"""The Events that say why CPU jobs wait: to whom, how soon, how often, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from coda.errors import Outage
from coda.model import JobId, WaitCode
from coda.model.decision import WaitReason
from coda.wording import counted
from coda_extender.cpu_jobs import pod_reasons
from coda_extender.cpu_jobs.pod_reasons import (
    AGAIN_AFTER_S,
    LINES_AT_ONCE,
    LOOK_EVERY_S,
    MOST_AT_ONCE,
    NEXT_FIRST_S,
    PACE_S,
    REPEAT_S,
    RETRY_S,
    PodReasons,
)
from coda_extender.planner_process import ChangedRefusals
from coda_extender.planner_process.messages import RefusedAlike
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from tests.extender.cpu_pods import OWNER, events, gated
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import NODES, PODS, node_json
from tests.extender.replicas import Replica, replica

TOO_LARGE = WaitReason(code=WaitCode.NEVER_FITS, message="no node is so large")
JOB = OWNER | {"apiVersion": "batch/v1", "kind": "Job"}


@pytest.fixture
async def api() -> FakeApi:
    """One node of 48 cores."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


class Teller:
    """The reasons of one replica, and the time. The replica itself tells nothing."""

    def __init__(self, api: FakeApi, one: Replica) -> None:
        self.now_s = 1000.0
        self.api = api
        self.cluster = one.cluster
        self.reasons = PodReasons(api, one.cluster, lambda: self.now_s)

    async def refuse(self, *names: str, reason: WaitReason = TOO_LARGE) -> None:
        jobs = tuple(JobId(name.replace("/", "/pod/")) for name in names)
        await self.api.until(lambda: all(job in self.cluster.state.cpu_jobs for job in jobs), timeout_s=20)
        self.reasons.change_refusals(ChangedRefusals(groups=(RefusedAlike(1, reason, jobs),)))

    async def told(self, after_s: float = LOOK_EVERY_S) -> list[str]:
        """The objects of the Events of one look, so long after the last one."""
        self.now_s += after_s
        before = len(events(self.api))
        await self.reasons.tell()
        return sorted(_about(event) for event in events(self.api)[before:])


def _about(event: Json) -> str:
    return f"{event['involvedObject']['kind']} {event['involvedObject']['name']}"


@pytest.fixture
async def teller(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Teller]:
    monkeypatch.setattr(pod_reasons, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(pod_reasons, "PACE_S", 0.0)
    async with replica(api) as one:
        yield Teller(api, one)


async def set_pods(api: FakeApi, teller: Teller, count: int, owner: Json = JOB) -> None:
    names = [f"work-{number}" for number in range(count)]
    for name in names:
        api.set(PODS, gated(name, cpu=60, ownerReferences=[owner]))
    await teller.refuse(*(f"default/{name}" for name in names))


async def test_five_hundred_lines_are_told_within_five_seconds_and_not_faster_than_said(
    api: FakeApi, teller: Teller
) -> None:
    seconds = 2 * LOOK_EVERY_S + MOST_AT_ONCE / LINES_AT_ONCE * PACE_S
    assert (MOST_AT_ONCE, LINES_AT_ONCE / PACE_S) == (500, 200)
    assert seconds <= 5.0
    names = [f"bare-{number}" for number in range(MOST_AT_ONCE + 10)]
    for name in names:
        api.set(PODS, gated(name, cpu=60))
    await teller.refuse(*(f"default/{name}" for name in names))
    assert await teller.told() == []
    assert len(await teller.told()) == MOST_AT_ONCE
    assert len(await teller.told()) == 10


async def test_a_namespace_of_many_lines_keeps_no_other_waiting(
    api: FakeApi, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_reasons, "MOST_AT_ONCE", 4)
    for number in range(10):
        api.set(PODS, gated(f"bare-{number}", cpu=60))
    api.set("/api/v1/namespaces/elsewhere/pods", gated("other", cpu=60))
    await teller.refuse(*(f"default/bare-{number}" for number in range(10)), "elsewhere/other")
    await teller.told()
    assert "Pod other" in await teller.told()


async def test_between_two_batches_there_is_a_pause(
    api: FakeApi, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"bare-{number}" for number in range(LINES_AT_ONCE + 1)]
    for name in names:
        api.set(PODS, gated(name, cpu=60))
    await teller.refuse(*(f"default/{name}" for name in names))
    await teller.told()
    monkeypatch.setattr(pod_reasons, "PACE_S", 3600.0)
    telling = asyncio.create_task(teller.told())
    while len(events(api)) < LINES_AT_ONCE:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(events(api)) == LINES_AT_ONCE
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)


async def test_what_was_not_taken_is_told_again(api: FakeApi, teller: Teller) -> None:
    def refuse(call: Call) -> None:
        if call.path.endswith("/default/events"):
            raise Rejected(403, "Forbidden", "not now")

    await set_pods(api, teller, 1)
    await teller.told()
    api.before = refuse
    assert len(await teller.told()) == 2  # they were sent
    assert await teller.told() == []
    api.before = None
    assert await teller.told(RETRY_S) == ["Job web", "Pod work-0"]
    assert await teller.told(RETRY_S) == []


async def test_a_look_ends_when_nothing_is_taken(api: FakeApi, teller: Teller) -> None:
    """The API server is away, and each post costs it a connection."""

    def refuse(call: Call) -> None:
        if call.path.endswith("/events"):
            raise Outage("gone for a moment")

    names = [f"bare-{number}" for number in range(3 * LINES_AT_ONCE)]
    for name in names:
        api.set(PODS, gated(name, cpu=60))
    await teller.refuse(*(f"default/{name}" for name in names))
    await teller.told()
    api.before = refuse
    assert len(await teller.told()) == LINES_AT_ONCE


async def test_the_next_first_pod_is_told_too(api: FakeApi, teller: Teller) -> None:
    await set_pods(api, teller, 3)
    await teller.told()
    assert await teller.told() == ["Job web", "Pod work-0"]
    teller.reasons.change_refusals(ChangedRefusals(groups=(), gone=(JobId("default/pod/work-0"),)))
    assert await teller.told() == []  # it may start in a moment, too
    assert await teller.told(NEXT_FIRST_S) == ["Pod work-1"]
    assert await teller.told(NEXT_FIRST_S) == []


async def test_a_line_whose_first_pod_starts_at_each_look_is_told_all_the_same(api: FakeApi, teller: Teller) -> None:
    await set_pods(api, teller, 3)
    await teller.told()
    teller.reasons.change_refusals(ChangedRefusals(groups=(), gone=(JobId("default/pod/work-0"),)))
    assert await teller.told() == ["Job web", "Pod work-1"]


async def test_a_reason_that_stays_is_told_again_before_its_event_is_gone(api: FakeApi, teller: Teller) -> None:
    await set_pods(api, teller, 1)
    await teller.told()
    assert await teller.told() == ["Job web", "Pod work-0"]
    assert await teller.told(REPEAT_S - 1) == []
    assert await teller.told(2) == ["Job web", "Pod work-0"]
    assert REPEAT_S < 3600


async def test_other_numbers_are_told_seldom(api: FakeApi, teller: Teller) -> None:
    await set_pods(api, teller, 1)
    await teller.told()
    await teller.told()
    await teller.refuse("default/work-0", reason=WaitReason(code=WaitCode.NEVER_FITS, message="1 node is so large"))
    assert await teller.told() == []
    assert await teller.told(AGAIN_AFTER_S) == ["Job web", "Pod work-0"]


async def test_numbers_that_change_for_an_hour_are_told_less_and_less_often(api: FakeApi, teller: Teller) -> None:
    """Thousands of lines may wait, and every pod that starts or ends changes what each of them says."""
    await set_pods(api, teller, 1)
    times: list[float] = []
    for second in range(0, 3600, 3):
        left = counted(1 + second % 7, "core")
        full = WaitReason(code=WaitCode.NEVER_FITS, message=f"none of {second} nodes has more than {left}")
        await teller.refuse("default/work-0", reason=full)
        if await teller.told(3.0):
            times.append(teller.now_s)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) <= 8
    assert pauses == sorted(pauses)
    assert max(pauses) <= REPEAT_S


async def test_another_text_is_told_soon_after_many_numbers(api: FakeApi, teller: Teller) -> None:
    await set_pods(api, teller, 1)
    for second in range(0, 600, 3):
        full = WaitReason(code=WaitCode.NEVER_FITS, message=f"{second} nodes are full")
        await teller.refuse("default/work-0", reason=full)
        await teller.told(3.0)
    for words in ("all nodes are cordoned", "all nodes are gone"):
        await teller.refuse("default/work-0", reason=WaitReason(code=WaitCode.NEVER_FITS, message=words))
        assert await teller.told(AGAIN_AFTER_S + 1) == ["Job web", "Pod work-0"]


class Counted:
    """The pattern of figures, and how often it is asked for."""

    def __init__(self) -> None:
        self.pattern, self.calls = pod_reasons._FIGURE, 0

    def sub(self, by: str, text: str) -> str:
        self.calls += 1
        return self.pattern.sub(by, text)


async def test_ten_thousand_lines_hold_up_no_answer(
    api: FakeApi, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of all lines change at once: few texts are compared, and filter calls are answered meanwhile."""
    counted_figures, lines, at_once = Counted(), 60, 10
    monkeypatch.setattr(pod_reasons, "_FIGURE", counted_figures)
    monkeypatch.setattr(pod_reasons, "_JOBS_AT_ONCE", at_once)
    monkeypatch.setattr(pod_reasons, "_JUDGED_AT_ONCE", at_once)
    names = [f"default/bare-{number}" for number in range(lines)]
    for name in names:
        api.set(PODS, gated(name.partition("/")[2], cpu=60))

    async def told(left: int, after_s: float) -> tuple[int, int]:
        """How many Events and comparisons."""
        reason = WaitReason(code=WaitCode.NEVER_FITS, message=f"{left} cores are left over of all")
        await teller.refuse(*names, reason=reason)
        counted_figures.calls = 0
        return len(await teller.told(after_s)), counted_figures.calls

    await told(1, 1.0)
    assert await told(1, 1.0) == (lines, 0)
    assert await told(2, 1.0) == (0, 0)
    assert (await told(2, AGAIN_AFTER_S))[0] == lines  # from now on the pause is twice as long
    events_now, comparisons = await told(3, AGAIN_AFTER_S + 1)
    assert events_now == 0
    assert comparisons <= 2

    turns = 0

    async def answer() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    answering = asyncio.create_task(answer())
    await teller.told(1.0)
    answering.cancel()
    assert turns > 2 * lines // at_once  # three loops over all lines have steps


async def test_a_line_of_pods_says_once_why_it_waits_and_again_when_that_changes(api: FakeApi) -> None:
    owner = OWNER | {"apiVersion": "batch/v1", "kind": "Job"}
    too_large = WaitReason(code=WaitCode.NEVER_FITS, message="no node is so large")
    too_full = WaitReason(code=WaitCode.INSUFFICIENT_CPU, message="too few cores are free")
    jobs = tuple(JobId(f"default/pod/work-{number}") for number in range(3))
    async with replica(api) as one:
        for number in range(3):
            api.set(PODS, gated(f"work-{number}", cpu=60, ownerReferences=[owner]))
        await api.until(lambda: all(job in one.cluster.state.cpu_jobs for job in jobs))
        reasons = PodReasons(api, one.cluster)
        reasons.change_refusals(ChangedRefusals(groups=(RefusedAlike(1, too_large, jobs),)))
        await reasons.tell()  # most pods start within a moment
        assert events(api) == []
        await reasons.tell()
        await reasons.tell()
        of_pod, of_job = events(api)
        assert (of_pod["involvedObject"]["name"], of_job["involvedObject"]["kind"]) == ("work-0", "Job")
        assert of_pod["reason"] == of_job["reason"] == "NeverFits"
        assert of_pod["message"] == "waits: no node is so large (pods of its owner that wait: 3)"
        assert of_job["message"] == "no node is so large (pods that wait: 3)"
        changes = ChangedRefusals(groups=(RefusedAlike(1, too_full, jobs[1:]),), gone=jobs[:1])
        reasons.change_refusals(changes)
        await reasons.tell()
        assert {event["message"] for event in events(api)[2:]} == {
            "waits: too few cores are free (pods of its owner that wait: 2)",
            "too few cores are free (pods that wait: 2)",
        }


async def test_a_foreign_pod_that_claims_the_owner_speaks_for_nobody_else(api: FakeApi) -> None:
    """Uids of owners are not secret, and its pod is older."""
    owner = OWNER | {"apiVersion": "batch/v1", "kind": "Job"}
    claimed = gated("claims", cpu=60, creationTimestamp="2020-01-01T00:00:00Z", ownerReferences=[owner])
    claimed["metadata"]["namespace"] = "elsewhere"
    jobs = (JobId("default/pod/work"), JobId("elsewhere/pod/claims"))
    too_large = WaitReason(code=WaitCode.NEVER_FITS, message="no node is so large")
    async with replica(api) as one:
        api.set(PODS, gated("work", cpu=60, ownerReferences=[owner]))
        api.set("/api/v1/namespaces/elsewhere/pods", claimed)
        await api.until(lambda: all(job in one.cluster.state.cpu_jobs for job in jobs))
        reasons = PodReasons(api, one.cluster)
        reasons.change_refusals(ChangedRefusals(groups=(RefusedAlike(1, too_large, jobs),)))
        for _ in range(3):
            await reasons.tell()
        assert "work" in [event["involvedObject"]["name"] for event in events(api)]
