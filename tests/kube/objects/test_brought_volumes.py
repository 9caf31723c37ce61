"""Jobs whose pods bring volumes of their own, as the planner reads them."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.read import job_from_json
from tests.extender.objects import job_json

SCRATCH = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "gp3"}}}}


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        (None, False),
        ([], False),
        ([{"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}], False),
        ([{"name": "tmp", "emptyDir": {}}, SCRATCH], True),
    ],
)
def test_only_volumes_that_are_made_with_each_pod_count(volumes: list[dict[str, Any]] | None, expected: bool) -> None:
    item = job_json("a")
    item["metadata"]["namespace"] = "team"
    item["spec"]["template"] = {"spec": {"containers": [{"name": "main"}], "volumes": volumes}}
    read = job_from_json(item, {})
    assert read is not None
    assert read.brings_volumes is expected
