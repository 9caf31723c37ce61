"""The metrics of a program's caches: whether they see changes, and what they cannot read.

An object that cannot be read is left out, or read in part, until it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coda_kube.api.watch_cache import WatchCache


class CacheMetrics(Collector):
    """Asks the caches at each scrape. Caches of one kind are told as one.

    A cache that was never filled from a list says nothing of being in touch."""

    def __init__(self, caches: Callable[[], Iterable[WatchCache]]) -> None:
        self._caches = caches

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        unreadable: dict[str, int] = {}
        in_touch: dict[str, bool] = {}
        for cache in self._caches():
            unreadable[cache.plural] = unreadable.get(cache.plural, 0) + len(cache.unreadable)
            if cache.synced.is_set():
                in_touch[cache.plural] = in_touch.get(cache.plural, True) and cache.in_touch.is_set()
        seen = GaugeMetricFamily("coda_watch_in_touch", "1 while changes are seen as they happen", labels=["resource"])
        left_out = GaugeMetricFamily(
            "coda_unreadable_objects", "Objects that cannot be read, or not as a whole", labels=["resource"]
        )
        for plural, count in sorted(unreadable.items()):
            left_out.add_metric([plural], count)
        for plural, is_seen in sorted(in_touch.items()):
            seen.add_metric([plural], float(is_seen))
        yield from (left_out, seen)
