"""What a job's claims, their volumes and StorageClasses mean for it, from its acceptance to its start."""

from __future__ import annotations

from typing import Any

from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_accidents import never
from tests.operator_tests.test_lost_ranks import reaches

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


def mounts(*claims: str) -> Json:
    """A template whose pods mount these claims."""
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    return {"spec": {"containers": [{"name": "main", "image": "train:1"}], "volumes": volumes}}


def unbound(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec, "status": {"phase": "Pending"}}


def class_of_first_use(**more: Any) -> Json:
    return {"metadata": {"name": "gp2"}, "volumeBindingMode": "WaitForFirstConsumer"} | more


async def test_the_old_annotation_names_the_class_of_a_claim() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        api.set(CLASSES, class_of_first_use())
        api.set(CLAIMS, unbound("data", {"volume.beta.kubernetes.io/storage-class": "gp2"}))
        await reaches(api, api.submit(template=mounts("data")), "Running")
