"""Pods with an image whose name is invalid: which containers keep the rank from starting, and whose name it is."""

from __future__ import annotations

from typing import Any

import pytest

from coda_operator.view.job_record import record_from_json
from coda_operator.view.rank_pods import rank_pod_from_json
from tests.operator_tests.view.test_packed_jobs import job_json

INVALID = {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image name"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff"}}


@pytest.mark.parametrize(
    ("main", "beside", "before", "expected"),
    [
        pytest.param(INVALID, CREATING, None, ("main", "Train"), id="the main one"),
        pytest.param(
            {"waiting": {"reason": "PodInitializing"}}, CREATING, INVALID, ("init", "${HUB}/proxy"), id="one before it"
        ),
        pytest.param(CREATING, INVALID, None, None, id="one beside it: the main one may start"),
        pytest.param(BACK_OFF, BACK_OFF, None, None, id="a pull that may succeed"),
        pytest.param({}, {}, None, None, id="nothing is told yet"),
    ],
)
def test_which_container_decides(
    main: dict[str, Any], beside: dict[str, Any], before: dict[str, Any] | None, expected: tuple[str, str] | None
) -> None:
    told = {"containerStatuses": [{"name": "side", "state": beside}, {"name": "main", "state": main}]}
    told |= {"initContainerStatuses": [{"name": "init", "state": before}]} if before is not None else {}
    labels = {"coda.scheduler/attempt": "1", "coda.scheduler/rank": "0"}
    containers = [{"name": "main", "image": "Train"}, {"name": "side", "image": "Side"}]
    item = {
        "metadata": {"name": "j-1-0", "uid": "u", "labels": labels},
        "spec": {
            "nodeName": "n1",
            "initContainers": [{"name": "init", "image": "${HUB}/proxy"}],
            "containers": containers,
        },
        "status": {"phase": "Pending", **told},
    }
    assert rank_pod_from_json(item, now_s=1000.0).bad_image == expected


def test_the_images_of_a_template_are_those_of_all_its_containers() -> None:
    init, main = {"name": "init", "image": "data:1"}, {"name": "main", "image": "train:1"}
    job = job_json(1, "Running")
    job["spec"]["template"] = {"spec": {"initContainers": [init], "containers": [main, {"name": "side"}]}}
    images = record_from_json("team-1/train-1", job).terms.images
    assert images == {("init", "data:1"), ("main", "train:1"), ("side", "")}
