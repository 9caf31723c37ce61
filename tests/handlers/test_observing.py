"""Pod JSON as kubelets really write it -> how far a rank came, and whose fault it is."""

from __future__ import annotations

from typing import Any

import pytest

from coda.gang import PodState
from coda_operator.observing import rank_pod_from_json


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    labels = {"coda.scheduler/attempt": "2", "coda.scheduler/rank": "5"}
    return {
        "metadata": {"name": "j-2-5", "uid": "u", "labels": labels, **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "side"}]},
        "status": status,
    }


def main(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "side", "state": {"running": {}}}, {"name": "main", "state": state}]


@pytest.mark.parametrize(
    ("status", "state", "disrupted", "reason"),
    [
        pytest.param({}, PodState.WAITING, False, "", id="no status yet"),
        pytest.param(
            {"containerStatuses": main({"waiting": {"reason": "ContainerCreating"}})},
            PodState.WAITING,
            False,
            "",
            id="being created",
        ),
        pytest.param(
            {"containerStatuses": main({"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}})},
            PodState.WAITING,
            False,
            "ImagePullBackOff",
            id="image cannot be pulled",
        ),
        pytest.param({"containerStatuses": main({"running": {}})}, PodState.STARTED, False, "", id="runs"),
        pytest.param(
            {"phase": "Running", "containerStatuses": main({"terminated": {"exitCode": 0, "reason": "Completed"}})},
            PodState.SUCCEEDED,
            False,
            "Completed",
            id="main is done while a sidecar goes on",
        ),
        pytest.param(
            {"phase": "Failed", "containerStatuses": main({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})},
            PodState.FAILED,
            False,
            "OOMKilled",
            id="out of memory is the job's own",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource"},
            PodState.FAILED,
            True,
            "OutOfcpu",
            id="refused by its kubelet",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "conditions": [{"type": "DisruptionTarget", "status": "True"}],
                "containerStatuses": main({"terminated": {"exitCode": 143, "reason": "Error"}}),
            },
            PodState.FAILED,
            True,
            "Error",
            id="evicted",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"},
            PodState.FAILED,
            False,
            "DeadlineExceeded",
            id="the template's own deadline",
        ),
        pytest.param(
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/8 nodes",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ]
            },
            PodState.WAITING,
            False,
            "Unschedulable",
            id="does not fit",
        ),
    ],
)
def test_how_far_a_rank_came(status: dict[str, Any], state: PodState, disrupted: bool, reason: str) -> None:
    seen = rank_pod_from_json(pod(status))
    assert (seen.state, seen.disrupted, seen.reason) == (state, disrupted, reason)
    assert (seen.attempt, seen.rank) == (2, 5)


def test_labels_that_were_tampered_with_belong_to_no_attempt() -> None:
    seen = rank_pod_from_json(pod({}, labels={"coda.scheduler/rank": "five"}))
    assert (seen.attempt, seen.rank) == (-1, -1)
