"""Pods with an image whose name is invalid: which containers keep the rank from ever starting."""

from __future__ import annotations

from typing import Any

import pytest

from coda_operator.view.rank_pods import rank_pod_from_json

INVALID = {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image name"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff"}}


@pytest.mark.parametrize(
    ("main", "beside", "before", "expected"),
    [
        pytest.param(INVALID, CREATING, None, True, id="the main one"),
        pytest.param({"waiting": {"reason": "PodInitializing"}}, CREATING, INVALID, True, id="one before it"),
        pytest.param(CREATING, INVALID, None, False, id="one beside it: the main one may start"),
        pytest.param(BACK_OFF, BACK_OFF, None, False, id="a pull that may succeed"),
        pytest.param({}, {}, None, False, id="nothing is told yet"),
    ],
)
def test_which_container_decides(
    main: dict[str, Any], beside: dict[str, Any], before: dict[str, Any] | None, expected: bool
) -> None:
    told = {"containerStatuses": [{"name": "side", "state": beside}, {"name": "main", "state": main}]}
    told |= {"initContainerStatuses": [{"name": "init", "state": before}]} if before is not None else {}
    labels = {"coda.scheduler/attempt": "1", "coda.scheduler/rank": "0"}
    item = {
        "metadata": {"name": "j-1-0", "uid": "u", "labels": labels},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "side"}]},
        "status": {"phase": "Pending", **told},
    }
    assert rank_pod_from_json(item, now_s=1000.0).never_starts is expected
