"""Which pods of a node the agent protects."""

from __future__ import annotations

from coda.contention import Protection
from coda_agent.cluster import local_pod_from_json
from tests.extender.objects import pod_json, rank_json


def test_a_label_alone_makes_no_pod_a_training_pod() -> None:
    """Finding L10: with it, a pod that takes the memory bandwidth was never throttled."""
    rank = rank_json("gang", 0, "n1", gpus=0)
    assert local_pod_from_json(rank, {"default"}).trains
    forged = rank | {"metadata": rank["metadata"] | {"ownerReferences": []}}
    other = pod_json("aggressor", metadata={"labels": {"coda.scheduler/job-uid": "any"}})
    other["metadata"] |= {"name": "aggressor", "namespace": "default", "uid": "a"}
    for item in (forged, other):
        pod = local_pod_from_json(item, {"default"})
        assert not pod.trains
        assert Protection.TRAINING not in pod.protections
