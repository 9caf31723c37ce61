"""A gang of thousands beside others: its launch and its roll-back delay nobody by more than two seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coda.lifecycle.pacing import SMALL, next_rate, room_for
from coda_kube.objects.json_types import Json
from coda_operator.reconcile.request_slots import Purpose, RequestSlots, TurnSlots
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import pin_of, rest_of_cluster

RATE_PER_S = 100
LARGE = 1000


@pytest.mark.parametrize(
    ("of_gang", "in_all", "rate", "room"),
    [
        pytest.param(0, 0, 100.0, 100, id="a second's worth"),
        pytest.param(100, 100, 100.0, 0, id="full"),
        pytest.param(60, 90, 100.0, 10, id="others have a part"),
        pytest.param(0, 5000, 100.0, SMALL, id="a small gang starts whatever others have"),
        pytest.param(0, 0, 1.0, 32, id="never so few that kube-scheduler idles"),
        pytest.param(0, 0, 1e6, 1024, id="never all"),
    ],
)
def test_how_many_pods_may_be_created(of_gang: int, in_all: int, rate: float, room: int) -> None:
    assert room_for(of_gang, in_all, rate) == room


def test_the_rate_follows_what_is_measured_under_load() -> None:
    rate = 100.0
    for _ in range(200):
        rate = next_rate(rate, 50, 2.0)
    assert rate == pytest.approx(25.0, rel=0.01)
    assert next_rate(25.0, 2, 0.001) == 25.0


async def test_waiting_jobs_get_slots_in_turns() -> None:
    slots = TurnSlots(1)
    order: list[str] = []

    async def work(key: str) -> None:
        async with slots.slot(key):
            order.append(key)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(work("large") for _ in range(50)), *(work("small") for _ in range(2)))
    assert order[:5] == ["large", "large", "small", "large", "small"]
    assert len(order) == 52


async def test_a_cancelled_wait_loses_no_slot() -> None:
    slots = TurnSlots(1)
    async with slots.slot("a"):
        waiting = asyncio.create_task(slots.slot("b").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(1), slots.slot("c"):
        pass


async def test_pods_end_although_others_are_being_created() -> None:
    requests = RequestSlots(lambda: True, at_once=2)
    create = Purpose.CREATE
    async with (
        requests.writing(create, "a"),
        requests.writing(create, "a"),
        asyncio.timeout(1),
        requests.writing(Purpose.END, "b"),
    ):
        assert requests.used == 3


@asynccontextmanager
async def slow_scheduler(api: FakeCluster) -> AsyncIterator[None]:
    """kube-scheduler's queue: one pod after the other, in the order in which they came."""
    queue: deque[str] = deque()

    def admit(pod: Json) -> None:
        if "name" in pod["metadata"]:
            queue.append(pod["metadata"]["name"])

    async def bind() -> None:
        while True:
            await asyncio.sleep(1 / RATE_PER_S)
            while queue and not api.exists(f"{PODS}/{queue[0]}"):
                queue.popleft()
            if queue:
                api.change(f"{PODS}/{queue.popleft()}", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))

    api.admit = admit
    binding = asyncio.create_task(bind())
    try:
        yield
    finally:
        binding.cancel()


async def test_a_large_gang_that_launches_and_rolls_back_delays_a_small_job_by_two_seconds_at_most() -> None:
    api = FakeCluster()
    delays: list[float] = []

    async def small(name: str) -> None:
        job, began_s = api.submit(name, replicas=1), clock()
        pod = f"{PODS}/{name}-1-0"
        await api.until(lambda: api.exists(pod) and "nodeName" in api.item(pod)["spec"], timeout_s=100)
        delays.append(clock() - began_s)
        assert api.status(job)["attempt"] == 1

    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest, operator(api):
        rest.moves_pods = False
        async with slow_scheduler(api):
            large = api.submit("large", replicas=LARGE)
            for number in range(4):
                await asyncio.sleep(1.5)
                await small(f"small-{number}")
            assert max(delays) <= 2.0
            bound = sum("nodeName" in pod["spec"] for name, pod in api.pods().items() if name.startswith("large-"))
            assert 0.6 * RATE_PER_S * 6 <= bound < LARGE  # kube-scheduler was kept busy
            api.edit(large, suspend=True)
            await small("small-last")
    assert max(delays) <= 2.0
