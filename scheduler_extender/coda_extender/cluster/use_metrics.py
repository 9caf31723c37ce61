"""The metrics of who uses the cluster: states of its GPUs and cores, arrays, and tenants.

Every replica shows them, and all show the same; a dashboard takes the maximum. A scrape costs O(virtual clusters)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.guard.cluster_use import NodeUse
from coda_kube.quotas.array_sums import ArraySums
from coda_kube.quotas.virtual_clusters import VirtualClusters

_BY_ARRAY = ["array", "state"]
_BY_TENANT = ["virtual_cluster", "state"]
_USED, _BORROWED, _WAITING, _QUOTA, _RUNNING = "Used", "Borrowed", "Waiting", "Quota", "Running"
_OUT_OF_SERVICE = "OutOfService"


class UseMetrics(Collector):
    """Reads the running sums of one replica at each scrape; nothing before the whole cluster was seen."""

    def __init__(self, cluster: ExtenderCluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        if self._cluster.is_synced():
            yield from _of_nodes(self._cluster.guard.cluster_use())
            yield from _of_arrays(self._cluster.state.arrays)
            yield from _of_tenants(self._cluster.state.tenants)


def _of_nodes(use: NodeUse) -> Iterator[Metric]:
    gpus = GaugeMetricFamily("coda_cluster_gpus", "GPUs of all nodes by state", labels=["state"])
    cores = GaugeMetricFamily("coda_cluster_cores", "Cores of all nodes by state", labels=["state"])
    gpus.add_metric([_USED], use.gpus_used)
    gpus.add_metric([_OUT_OF_SERVICE], use.gpus_out_of_service)
    gpus.add_metric(["FreeWithoutCores"], use.gpus_without_cores)
    gpus.add_metric(["FreeOnEmptyNodes"], use.gpus_on_empty_nodes)
    gpus.add_metric(["FreeBesideOthers"], use.gpus_beside_others)
    cores.add_metric([_USED], use.cpu_m_used / 1000)
    cores.add_metric([_OUT_OF_SERVICE], use.cpu_m_out_of_service / 1000)
    cores.add_metric(["Free"], use.cpu_m_free / 1000)
    yield from (gpus, cores)


def _of_arrays(use: ArraySums) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("coda_array_jobs", "Jobs by array", labels=_BY_ARRAY)
    gpus = GaugeMetricFamily("coda_array_gpus", "GPUs that the jobs of an array have, or wait for", labels=_BY_ARRAY)
    cores = GaugeMetricFamily("coda_array_cores", "Cores that the jobs of an array have, or wait for", labels=_BY_ARRAY)
    for array, sums in use.amounts_by_array.items():
        name = array.name.capitalize()
        jobs.add_metric([name, _RUNNING], sums.running)
        jobs.add_metric([name, _WAITING], sums.waiting)
        gpus.add_metric([name, _USED], sums.gpus)
        gpus.add_metric([name, _WAITING], sums.waiting_gpus)
        cores.add_metric([name, _USED], sums.cpu_m / 1000)
        cores.add_metric([name, _BORROWED], sums.borrowed_cpu_m / 1000)
        cores.add_metric([name, _WAITING], sums.waiting_cpu_m / 1000)
    yield from (jobs, gpus, cores)


def _of_tenants(tenants: VirtualClusters) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("coda_tenant_jobs", "Jobs of a virtual cluster and of those below it", labels=_BY_TENANT)
    gpus = GaugeMetricFamily(
        "coda_tenant_gpus", "GPUs of the training jobs of a virtual cluster and of those below it", labels=_BY_TENANT
    )
    cores = GaugeMetricFamily(
        "coda_tenant_cores", "Cores of the CPU jobs of a virtual cluster and of those below it", labels=_BY_TENANT
    )
    for name, tenant in tenants.by_name().items():
        sums = tenants.amounts_of(name)
        jobs.add_metric([name, _RUNNING], sums.running)
        jobs.add_metric([name, _WAITING], sums.waiting)
        seat = tenants.tree.seat(name)
        for family, used, waiting, quota, own in (
            (gpus, sums.gpus, sums.waiting_gpus, tenant.gpus, seat.own_gpus),
            (
                cores,
                sums.cpu_m / 1000,
                sums.waiting_cpu_m / 1000,
                tenant.cpu_m and tenant.cpu_m / 1000,
                seat.own_cpu_m / 1000,
            ),
        ):
            family.add_metric([name, _USED], used)
            family.add_metric([name, _BORROWED], max(0.0, used - own))
            family.add_metric([name, _WAITING], waiting)
            if quota is not None:
                family.add_metric([name, _QUOTA], quota)
    yield from (jobs, gpus, cores)
