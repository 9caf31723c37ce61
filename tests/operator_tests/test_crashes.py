"""The operator is killed after its k-th write, for every k: whoever comes next finishes what was begun."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_RANK
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import Wire, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster

REPLICAS = 3
WRITES = 27  # of the whole story, when nobody is killed


def fails_once(attempt: int, rank: int) -> int:
    return 1 if (attempt, rank) == (1, 1) else 0


async def run_until_killed(api: FakeCluster, last_write: int, done: asyncio.Event) -> bool:
    """One process; True when the story ended first."""
    wire = Wire(api, last_write=last_write)
    async with operator(api, wire=wire):
        ends = [asyncio.create_task(event.wait()) for event in (wire.dead, done)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
    return done.is_set()


async def tell(api: FakeCluster, story: list[int]) -> list[Json]:
    """A gang that fails once, succeeds and is deleted, by processes that live for so many writes each.

    Returns every state of its pods."""
    done = asyncio.Event()
    job = api.submit("job", replicas=REPLICAS)

    async def user() -> None:
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=3600)
        assert (api.status(job)["attempt"], api.status(job)["failures"]) == (2, 1)
        api.end(job)
        await api.until(lambda: not api.exists(job), timeout_s=600)
        done.set()

    async with rest_of_cluster(api, exit_code=fails_once):
        telling = asyncio.create_task(user())
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(telling.cancel)
            for last_write in [*story, 10_000]:
                if await run_until_killed(api, last_write, done):
                    break
            await telling
        await api.until(lambda: api.pods() == {})
    return [pod for _, pod in api.history("pods")]


def check(states: list[Json]) -> None:
    """No rank of an attempt is started twice, and no two attempts run at the same time."""
    started: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    alive: dict[str, int] = {}
    for pod in states:
        labels, uid = pod["metadata"]["labels"], pod["metadata"]["uid"]
        attempt, rank = int(labels[LABEL_ATTEMPT]), int(labels[LABEL_RANK])
        if pod["status"]["phase"] == "Running":
            started[attempt, rank].add(uid)
            alive[uid] = attempt
        if pod["status"]["phase"] in ("Succeeded", "Failed") or pod["metadata"].get("stopped"):
            alive.pop(uid, None)
        assert len(set(alive.values())) <= 1, "two attempts run at the same time"
    assert set(started) == {(attempt, rank) for attempt in (1, 2) for rank in range(REPLICAS)}
    assert all(len(uids) == 1 for uids in started.values())


async def test_the_story_has_as_many_writes_as_these_tests_kill_at() -> None:
    api = FakeCluster()
    check(await tell(api, []))
    verbs = ("create", "patch", "apply", "delete")
    assert sum(call.verb in verbs and not call.path.endswith("/events") for call in api.calls) == WRITES


@pytest.mark.parametrize("last_write", range(1, WRITES + 1))
async def test_killed_after_one_write(last_write: int) -> None:
    check(await tell(FakeCluster(), [last_write]))


@pytest.mark.parametrize("seed", range(20))
async def test_killed_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    check(await tell(FakeCluster(), [rng.randint(1, 4) for _ in range(30)]))


async def test_killed_after_every_single_write() -> None:
    check(await tell(FakeCluster(), [1] * WRITES * 2))
