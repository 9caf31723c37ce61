"""Many jobs that their namespace does not admit: what they cost, whom they delay, and that none is forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_operator.view.admission_waiters import IN_TURN, LONGEST, AdmissionWaiters
from coda_operator.work_queue import LAST_DELAY_S
from tests.operator_tests.fake_cluster import JOBS, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster

FULL = 'pods "x" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=8, limited: 8'
NO_ACCOUNT = 'error looking up service account default/x: serviceaccount "x" not found'


class Crowded(FakeCluster):
    """A namespace that admits no pod of the jobs of `crowd`, for that reason, after `takes_s`."""

    def __init__(self, message: str = FULL) -> None:
        super().__init__()
        self.crowd: tuple[str, ...] = ()
        self.message = message
        self.takes_s = 0.0
        self.tries: Counter[str] = Counter()

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        if not (query or {}).get("dryRun"):
            return await super().create(path, body, query)
        await asyncio.sleep(self.takes_s)
        name = body["metadata"]["generateName"].removesuffix("-")
        self.tries[name] += 1
        if name.startswith(self.crowd):
            raise Rejected(403, "Forbidden", self.message)
        return await super().create(path, body, query)

    async def refuses(self, crowd: str, number: int) -> list[str]:
        """Have so many jobs refused, besides; their paths."""
        self.crowd = (*self.crowd, crowd)
        jobs = [self.submit(f"{crowd}-{one}", replicas=1) for one in range(number)]
        await self.until(lambda: all(self.status(job).get("reason") for job in jobs), timeout_s=600)
        await asyncio.sleep(100)
        return jobs


@pytest.mark.parametrize("message", [pytest.param(FULL, id="quota"), pytest.param(NO_ACCOUNT, id="account")])
@pytest.mark.parametrize("number", [20, 100])
async def test_what_a_crowd_costs_does_not_grow_with_it_and_each_is_tried_in_its_turn(
    number: int, message: str
) -> None:
    api = Crowded(message)
    async with rest_of_cluster(api), operator(api):
        await api.refuses("crowd", number)
        api.tries.clear()
        rounds = -(-number // IN_TURN) + 1
        await asyncio.sleep(rounds * LAST_DELAY_S)
    assert len(api.tries) == number
    assert api.tries.total() <= rounds * (LONGEST + IN_TURN) + LONGEST


async def test_a_new_job_does_not_wait_for_those_that_were_refused() -> None:
    api = Crowded()
    async with rest_of_cluster(api), operator(api):
        await api.refuses("crowd", 100)
        api.takes_s = 2.0
        await asyncio.sleep(100)
        began_s = clock()
        job = api.submit("honest", replicas=1)
        await api.until(lambda: "request" in api.status(job))
        assert clock() - began_s < 2.5


@pytest.mark.parametrize("number", [1, 8, 100])
async def test_all_are_accepted_soon_after_their_quota_was_raised(number: int) -> None:
    api = Crowded()
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        jobs = await api.refuses("crowd", number)
        api.crowd = ()
        await api.until(lambda: all("request" in api.status(job) for job in jobs), timeout_s=LAST_DELAY_S + 5)


async def test_a_small_job_behind_large_ones_is_accepted_soon_after_a_pod_ends() -> None:
    api = Crowded()
    async with rest_of_cluster(api) as rest, operator(api):
        rest.run_s = lambda _attempt, _rank: 400.0
        first = api.submit("first", replicas=1)
        await api.refuses("large", LONGEST)
        await api.refuses("small", 1)
        await api.until(lambda: api.status(first).get("phase") == "Succeeded", timeout_s=600)
        api.crowd = ("large",)
        await api.until(lambda: "request" in api.status(f"{JOBS}/small-0"), timeout_s=2)


async def test_who_comes_to_the_front_is_tried_by_its_own_timer() -> None:
    """The jobs before it were deleted, and no pod ends."""
    tried: list[str] = []
    waiters = AdmissionWaiters(tried.append)
    keys = [f"team/{number}" for number in range(LONGEST + 1)]
    assert [waiters.add(key) for key in keys] == [True] * LONGEST + [False]
    waiters.discard(keys[0])
    tried.clear()
    await asyncio.sleep(LAST_DELAY_S + 1)
    assert keys[-1] in tried
    assert waiters.add(keys[-1])


async def test_a_new_term_knows_of_no_waiting_job() -> None:
    tried: list[str] = []
    waiters = AdmissionWaiters(tried.append)
    for number in range(LONGEST + 1):
        waiters.add(f"team/{number}")
    waiters.on_freed("team")
    waiters.forget_all()
    await asyncio.sleep(LAST_DELAY_S + 1)
    assert tried == []
    assert waiters.add("team/new")
