"""Caches follow an API server whose data go back to a backup, and whose versions pass the known ones again."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.errors import Outage
from coda_kube.api.history import history_of
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import Call, FakeApi
from tests.kube.api.test_hostile_answers import PATH, Restored, running, thing, until
from tests.virtual_time import VirtualLoop

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"


class Away:
    """The server can be cut off, and what is written meanwhile is not seen."""

    def __init__(self, api: FakeApi) -> None:
        self.is_away = False
        api.before = self._check

    def _check(self, _call: Call) -> None:
        if self.is_away:
            raise Outage("no route")


@asynccontextmanager
async def following(*caches: WatchCache) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(cache.run()) for cache in caches]
    try:
        for cache in caches:
            await cache.synced.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def put(api: FakeApi, name: str, **more: str) -> None:
    api.set("/api/v1/namespaces/team/pods", {"metadata": {"name": name}, **more})


def shown(cache: WatchCache) -> dict[str, str]:
    return {key: str(item.get("is")) for key, item in cache.by_key.items()}


def stored(api: FakeApi, path: str = PODS) -> dict[str, str]:
    prefix = f"{path.rpartition('/')[0]}/namespaces/team/pods"
    return {f"team/{key[2]}": str(api.item(f"{prefix}/{key[2]}").get("is")) for key in api._items if key[0] == "pods"}


def in_virtual_time(work: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())  # type: ignore[arg-type]


def test_versions_that_pass_the_known_ones_hide_no_restore() -> None:
    """What had ended runs again, what was bound is not, and the server tells of neither: both changed before."""

    async def work() -> None:
        api, restored = FakeApi(), list[None]()
        away = Away(api)
        for name in ("ends", "binds", "goes"):
            put(api, name, **{"is": "waiting"})
        pods = WatchCache(api, PODS, on_restored=lambda: restored.append(None))
        nodes = WatchCache(api, NODES, on_restored=lambda: restored.append(None))
        async with following(pods, nodes):
            backup = api.backup()
            put(api, "ends", **{"is": "ended"})
            put(api, "binds", **{"is": "bound"})
            api.remove("/api/v1/namespaces/team/pods/goes")
            await asyncio.sleep(1)
            assert shown(pods) == {"team/ends": "ended", "team/binds": "bound"}
            away.is_away = True
            api.restart(backup)
            for number in range(20):
                put(api, f"other-{number}")
            assert api.version > 3 + 3
            away.is_away = False
            await asyncio.sleep(20)
            assert shown(pods) == stored(api)
            assert shown(pods)["team/ends"] == "waiting"
            assert "team/goes" in shown(pods)
        assert len(restored) == 2  # each cache once

    in_virtual_time(work)


def test_a_list_of_restored_data_that_breaks_off_is_no_less_forced_the_next_time() -> None:
    class Short(FakeApi):
        """Gives one item a page; the first list of restored data ends after its first page."""

        breaks = 0

        async def pages(
            self, path: str, query: Mapping[str, str] | None = None, page: int = 200
        ) -> AsyncIterator[Json]:
            whole = await self.list_pages(path, query)
            for item in whole["items"]:
                yield {"metadata": whole["metadata"], "items": [item]}
                if self.breaks and page == 200:
                    self.breaks -= 1
                    raise Outage("broken off")

    async def work() -> None:
        api = Short()
        for name in ("a", "b", "c"):
            put(api, name, **{"is": "running"})
        cache = WatchCache(api, PODS)
        async with following(cache):
            backup = api.backup()
            for name in ("a", "b", "c"):
                put(api, name, **{"is": "ended"})
            await asyncio.sleep(1)
            api.breaks = 1
            api.restart(backup)
            await asyncio.sleep(30)
            assert shown(cache) == {"team/a": "running", "team/b": "running", "team/c": "running"}

    in_virtual_time(work)


def test_a_server_that_restarts_with_its_data_begins_no_other_history() -> None:
    async def work() -> None:
        api, restored = FakeApi(), list[None]()
        cache = WatchCache(api, PODS, on_restored=lambda: restored.append(None))
        for ends in (False, True):  # the newest change is a write, or an end
            put(api, "a", **{"is": "1"})
            put(api, "b")
            async with following(cache):
                put(api, "a", **{"is": "2"})
                if ends:
                    api.remove("/api/v1/namespaces/team/pods/b")
                await asyncio.sleep(1)
                api.restart()
                put(api, "a", **{"is": "3"})
                await asyncio.sleep(20)
                assert shown(cache) == stored(api)
        assert restored == []
        assert history_of(api).era == 0

    in_virtual_time(work)


def test_a_restored_end_is_noticed_although_nothing_else_was_written() -> None:
    async def work() -> None:
        api = FakeApi()
        away = Away(api)
        put(api, "a")
        put(api, "b")
        cache = WatchCache(api, PODS)
        async with following(cache):
            backup = api.backup()
            api.remove("/api/v1/namespaces/team/pods/a")
            await asyncio.sleep(1)
            away.is_away = True
            api.restart(backup)
            put(api, "c")
            put(api, "d")
            away.is_away = False
            await asyncio.sleep(20)
            assert shown(cache).keys() == {"team/a", "team/b", "team/c", "team/d"}

    in_virtual_time(work)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_server_that_forgot_the_witness_is_listed(forgets: bool) -> None:
    async def work() -> None:
        api = FakeApi()
        put(api, "a")
        cache = WatchCache(api, PODS)
        async with following(cache):
            if forgets:
                put(api, "b")
                await asyncio.sleep(1)
                api.version += 1
                api.compact()
            api.restart()
            await asyncio.sleep(20)
            put(api, "c")
            await asyncio.sleep(1)
            assert shown(cache) == stored(api)

    in_virtual_time(work)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(0, 12), st.floats(0.0, 3.0))
def test_after_any_restore_every_cache_shows_what_is_stored(seed: int, before: int, after: int, away_s: float) -> None:
    """`before`: writes that the restore takes back; `after`: writes before anybody is back in touch.

    No object is written at one version in both histories: nobody could tell them apart."""
    rng = random.Random(seed)

    def write(api: FakeApi, names: str = "abcde") -> None:
        name = rng.choice(names)
        if rng.random() < 0.3 and ("pods", "team", name) in api._items:
            api.remove(f"/api/v1/namespaces/team/pods/{name}")
        else:
            put(api, name, **{"is": str(rng.random())})

    async def work() -> None:
        api = FakeApi()
        away = Away(api)
        for _ in range(rng.randint(0, 5)):
            write(api)
        cache = WatchCache(api, PODS)
        async with following(cache):
            await asyncio.sleep(1)
            backup = api.backup()
            for _ in range(before):
                write(api)
            await asyncio.sleep(rng.choice((0.0, 1.0)))
            known = api.version
            away.is_away = True
            api.restart(backup)
            for _ in range(after):
                write(api, "abcde" if api.version >= known else "fghij")
            await asyncio.sleep(away_s)
            away.is_away = False
            await asyncio.sleep(5)
            for _ in range(3):
                write(api)
            await asyncio.sleep(20)
            assert shown(cache) == stored(api)

    in_virtual_time(work)


async def test_a_list_wins_over_all_that_is_not_newer_than_it() -> None:
    """A backup may be restored, and its versions raised beyond the known ones (`etcdutl --bump-revision`)."""
    client = Restored()
    cache = WatchCache(client, PATH)
    async with running(cache):
        await until(lambda: client.watched_from == [50])
        cache.drop(json.loads(thing("back", 49)))
    client.restore(version=1_000_000)
    cache._seen_until = None
    async with running(cache):
        await until(lambda: len(client.watched_from) >= 2)
        assert sorted(cache.by_key) == ["team/back", "team/changed", "team/kept"]
        assert cache.by_key["team/kept"]["metadata"]["resourceVersion"] == "10"
