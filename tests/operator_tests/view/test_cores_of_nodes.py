"""How many cores go with a job's GPUs: on the poorest of the nodes that it accepts."""

from __future__ import annotations

from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import NODES, FakeCluster
from tests.operator_tests.view.test_cluster import node_json, settle, watched


def on_h100(*others: str) -> Json:
    """A pod's spec that requires such nodes by affinity."""
    wanted = {"key": "gpu", "operator": "In", "values": ["h100", *others]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def labelled(name: str, gpu: str, cores: str) -> Json:
    node = node_json(name, **{"cpu": cores, "nvidia.com/gpu": "8"})
    return node | {"metadata": node["metadata"] | {"labels": {"gpu": gpu}}}


async def test_only_nodes_that_a_jobs_selectors_accept_limit_the_cores_that_it_starts_with() -> None:
    api = FakeCluster()
    for name, cores in (("h100", "192"), ("old", "16"), ("other", "24")):
        api.set(NODES, labelled(name, name, cores))
    async with watched(api) as (cluster, _):
        await settle()
        part_of_cores = cluster.nodes.part_of_cores
        assert (part_of_cores(1), part_of_cores(8)) == (1, 15)
        assert (part_of_cores(1, {"nodeSelector": {"gpu": "h100"}}), part_of_cores(8, on_h100())) == (23, 191)
        assert part_of_cores(8, on_h100("other")) == 23
        assert part_of_cores(8, {"nodeSelector": {"gpu": "none"}}) == 15  # it accepts no node: all count
        api.set(NODES, labelled("old", "h100", "16"))
        await settle()
        assert part_of_cores(8, on_h100()) == 15


async def test_a_spec_that_cannot_be_read_limits_nothing() -> None:
    """The API server, which refuses it, has not seen it yet."""
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        api.set(NODES, labelled("h100", "5", "192"))
        api.set(NODES, labelled("old", "4", "16"))
        await settle()
        for selector in (3, {"gpu": ["h100"]}, ["gpu"]):
            assert cluster.nodes.part_of_cores(8, {"nodeSelector": selector}) == 15
        number = {"key": "gpu", "operator": "Gt", "values": [5]}
        for term in (
            3,
            {"matchExpressions": [{"key": "gpu"}]},
            {"matchExpressions": 3},
            {"matchExpressions": [number]},
        ):
            terms = {"nodeSelectorTerms": [term]}
            required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
            assert cluster.nodes.part_of_cores(8, {"affinity": required}) == 15
            assert cluster.nodes.part_of_cores(8, {"affinity": {"nodeAffinity": term}}) == 15
