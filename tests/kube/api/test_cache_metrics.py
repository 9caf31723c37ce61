"""What a scrape says of a program's caches."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from coda_kube.api.cache_metrics import CacheMetrics
from coda_kube.api.watch_cache import WatchCache
from tests.extender.fake_api import FakeApi


async def test_caches_of_one_kind_are_told_as_one() -> None:
    api = FakeApi()
    pods = [WatchCache(api, "/api/v1/pods"), WatchCache(api, "/api/v1/pods", query={"fieldSelector": "x"})]
    never_listed = WatchCache(api, "/api/v1/nodes")
    registry = CollectorRegistry()
    registry.register(CacheMetrics(lambda: (*pods, never_listed)))

    def shown(name: str, resource: str) -> float | None:
        return registry.get_sample_value(name, {"resource": resource})

    for cache in pods:
        cache.synced.set()
        cache.unreadable["default/odd"] = "why"
    assert (shown("coda_unreadable_objects", "pods"), shown("coda_unreadable_objects", "nodes")) == (2, 0)
    assert (shown("coda_watch_in_touch", "pods"), shown("coda_watch_in_touch", "nodes")) == (1, None)
    pods[1].in_touch.clear()
    assert shown("coda_watch_in_touch", "pods") == 0
