"""Whom an object counts for: its stamp, where it names a person."""

from __future__ import annotations

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, GATE
from coda_kube.objects.pods.users import LONGEST, user_from_json
from coda_kube.objects.read import job_from_json, job_from_pod, pod_from_json
from tests.extender.objects import job_json, pod_json


@pytest.mark.parametrize(
    ("notes", "user"),
    [
        pytest.param(None, "team", id="no annotations"),
        pytest.param({}, "team", id="no stamp"),
        pytest.param({ANNOTATION_USER: ""}, "team", id="an empty stamp"),
        pytest.param({ANNOTATION_USER: "ann@example.com"}, "ann@example.com", id="a person"),
        pytest.param({ANNOTATION_USER: "https://idp#Zoë Ω"}, "https://idp#Zoë Ω", id="any characters"),
        pytest.param({ANNOTATION_USER: "x" * 10_000}, "x" * LONGEST, id="a long name"),
        pytest.param({ANNOTATION_USER: "system:serviceaccount:team:bot-7"}, "team", id="one of many accounts"),
        pytest.param({ANNOTATION_USER: "system:serviceaccount:argo:argo"}, "team", id="the account of a controller"),
        pytest.param({ANNOTATION_USER: "system:kube-controller-manager"}, "team", id="Kubernetes itself"),
    ],
)
def test_whom_an_object_counts_for(notes: Json | None, user: str) -> None:
    assert user_from_json({"namespace": "team", "annotations": notes}) == user


def test_the_planner_reads_the_stamp_of_a_training_job_and_of_a_pod() -> None:
    item = job_json("train")
    item["metadata"] |= {"namespace": "default", "annotations": {ANNOTATION_USER: "ann"}}
    pod = pod_json(
        "work", metadata={"annotations": {ANNOTATION_USER: "bob"}}, spec={"schedulingGates": [{"name": GATE}]}
    )
    read = (job_from_json(item, {}), job_from_pod(pod_from_json(pod)))
    assert [job.user for job in read if job is not None] == ["ann", "bob"]
