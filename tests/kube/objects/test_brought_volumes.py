"""Jobs whose pods bring volumes of their own, as the planner reads them."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.read import job_from_json
from coda_kube.objects.volumes import brought_classes
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


@pytest.mark.parametrize(
    ("status", "late_binds"),
    [
        ({}, 0),
        ({"reason": "BindDeadlineExceeded", "disruptionsInARow": 3}, 3),
        ({"reason": "NodeLost", "disruptionsInARow": 3}, 0),
    ],
)
def test_attempts_in_a_row_count_while_the_last_was_not_bound_in_time(status: dict[str, Any], late_binds: int) -> None:
    item = job_json("a", **status)
    item["metadata"]["namespace"] = "team"
    read = job_from_json(item, {})
    assert read is not None
    assert read.late_binds == late_binds


@pytest.mark.parametrize(
    ("template", "classes"),
    [
        ({"spec": {"storageClassName": "gp3"}}, {"scratch": "gp3"}),
        ({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "gp2"}}}, {"scratch": "gp2"}),
        ({"spec": {"storageClassName": ""}}, {}),
        ({"spec": {}}, {}),
        (None, {}),
    ],
)
def test_the_classes_that_ephemeral_volumes_name(template: dict[str, Any] | None, classes: dict[str, str]) -> None:
    tmp = {"name": "tmp", "emptyDir": {}}
    assert brought_classes({"volumes": [tmp, {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]}) == (
        classes
    )
