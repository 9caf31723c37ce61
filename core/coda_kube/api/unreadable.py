"""The metric of objects that a program cannot read: they are left out, or read in part, until they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coda_kube.api.watch_cache import WatchCache


class UnreadableObjects(Collector):
    """Reports, at each scrape, what the caches could not read, by kind."""

    def __init__(self, caches: Callable[[], Iterable[WatchCache]]) -> None:
        self._caches = caches

    def collect(self) -> Iterator[Metric]:
        """Yield the metric as it is now."""
        counts: Counter[str] = Counter()
        for cache in self._caches():
            counts[cache.plural] += len(cache.unreadable)
        family = GaugeMetricFamily(
            "coda_unreadable_objects", "Objects that cannot be read, or not as a whole", labels=["resource"]
        )
        for plural, count in sorted(counts.items()):
            family.add_metric([plural], count)
        yield family
