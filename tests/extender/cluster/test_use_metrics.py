"""What a scrape says of who uses the cluster."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from coda_extender.cluster.use_metrics import UseMetrics
from coda_kube.objects.names import API_VERSION
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, job_json, node_json
from tests.extender.replicas import replica, state_of, status

VIRTUAL_CLUSTERS = f"/apis/{API_VERSION}/virtualclusters"


async def test_the_cluster_its_arrays_and_its_tenants_are_shown() -> None:
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    tenant = {"metadata": {"name": "lab", "generation": 1}, "spec": {"namespaces": ["default"], "quota": {"gpus": 1}}}
    api.set(VIRTUAL_CLUSTERS, tenant)
    api.set(JOBS, job_json("small", gpus=2))
    async with replica(api) as one:
        registry = CollectorRegistry()
        registry.register(UseMetrics(one.cluster))
        await api.until(lambda: state_of(api, "small") == "Released")
        api.set(JOBS, job_json("large", gpus=8))
        await api.until(lambda: "pending" in status(api, "large"))
        shown = {
            (name, tuple(labels.values())): registry.get_sample_value(name, labels)
            for name, labels in (
                ("coda_cluster_gpus", {"state": "Used"}),
                ("coda_cluster_gpus", {"state": "FreeBesideOthers"}),
                ("coda_cluster_cores", {"state": "Free"}),
                ("coda_array_gpus", {"array": "Small", "state": "Used"}),
                ("coda_array_jobs", {"array": "Large", "state": "Waiting"}),
                ("coda_tenant_gpus", {"virtual_cluster": "lab", "state": "Borrowed"}),
                ("coda_tenant_gpus", {"virtual_cluster": "lab", "state": "Quota"}),
                ("coda_tenant_cores", {"virtual_cluster": "lab", "state": "Quota"}),
            )
        }
    assert list(shown.values()) == [2, 6, 44, 2, 1, 1, 1, None], shown


async def test_nothing_is_shown_before_the_cluster_was_seen() -> None:
    api = FakeApi()
    async with replica(api) as one:
        pass
    registry = CollectorRegistry()
    one.cluster.jobs.synced.clear()
    registry.register(UseMetrics(one.cluster))
    assert registry.get_sample_value("coda_cluster_gpus", {"state": "Used"}) is None
