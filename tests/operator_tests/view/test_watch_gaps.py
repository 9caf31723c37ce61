"""Until when a watch told all changes, with breaks that follow each other."""

from __future__ import annotations

import asyncio

from coda_kube.api.watch_cache import WatchCache
from coda_operator.view.pods.watch_gaps import CATCH_UP_S, WatchGap
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock


async def test_what_comes_after_a_break_may_be_as_old_as_that() -> None:
    cache, gap = WatchCache(FakeCluster(), PODS), WatchGap(clock)
    assert gap.seen_until_s(cache) == 0.0
    cache.synced.set()
    await asyncio.sleep(100)
    assert gap.seen_until_s(cache) == clock()
    broke_s = clock()
    for try_s in (10, 50, 200):  # the first break, and tries to go on
        cache.in_touch.clear()
        gap.begin(cache)
        await asyncio.sleep(try_s)
        assert gap.seen_until_s(cache) == broke_s
    touch(cache)
    await asyncio.sleep(CATCH_UP_S - 1)
    assert gap.seen_until_s(cache) == broke_s
    await asyncio.sleep(2)
    assert gap.seen_until_s(cache) == clock()


async def test_a_break_soon_after_another_is_the_same_one() -> None:
    cache, gap = WatchCache(FakeCluster(), PODS), WatchGap(clock)
    cache.synced.set()
    began_s = []
    for steady_s in (CATCH_UP_S / 2, CATCH_UP_S * 2, 0):
        cache.in_touch.clear()
        gap.begin(cache)
        await asyncio.sleep(10)
        began_s.append(gap.seen_until_s(cache))
        touch(cache)
        await asyncio.sleep(steady_s)
    assert began_s[0] == began_s[1] == began_s[2] - 20 - CATCH_UP_S * 2.5


def touch(cache: WatchCache) -> None:
    cache.in_touch.set()
    cache.touched_s = asyncio.get_running_loop().time()
