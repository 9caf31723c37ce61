from __future__ import annotations

from typing import Any

import pytest

from coda.errors import InvalidInput
from coda_kube.objects.names import LABEL_RANK
from coda_lab.kubelets.machine import SimPod
from coda_lab.kubelets.pods.logs import LogQuery, log_lines, log_query, rendered, why_no_log
from tests.lab.kubelets.kubelet_objects import Rig, pod_json

LINES = ((10.0, "one"), (20.0, "two"), (30.0, "three"))


def pod_after(seconds: float, **annotations: Any) -> SimPod:
    rig = Rig()
    environment = [{"name": "WORLD_SIZE", "value": "4"}]
    spec = {"containers": [{"name": "main", "image": "m", "env": environment}, {"name": "extra", "image": "e"}]}
    rig.fleet.pod_seen(pod_json("p", labels={LABEL_RANK: "2"}, spec=spec, start_delay_seconds="0", **annotations))
    rig.run_to(seconds)
    return rig.pod("p")


def texts(pod: SimPod, container: str = "main") -> list[str]:
    return [text for _, text in log_lines(pod, container)]


def test_the_log_says_who_ran_for_how_long_and_how_it_ended() -> None:
    start = "rank 2 of 4 started on n0, runs for 5 s"
    assert texts(pod_after(1, run_seconds="5")) == [start]
    assert texts(pod_after(9, run_seconds="5", exit_code="3")) == [
        start,
        "rank 2 of 4 ended after 5.0 s with exit code 3",
    ]


def test_the_annotations_text_is_the_log() -> None:
    assert texts(pod_after(9, run_seconds="5", log="loss 0.1\nloss 0.05")) == ["loss 0.1", "loss 0.05"]


def test_only_the_main_container_writes() -> None:
    assert texts(pod_after(9), "extra") == []


def test_what_has_not_started_has_no_log_and_says_why() -> None:
    pod = pod_after(5, image_pull="fail")
    assert why_no_log(pod, "main") == 'container "main" in pod "p" is waiting to start: ImagePullBackOff'
    assert texts(pod) == []


def test_a_refused_pod_has_an_empty_log() -> None:
    pod = pod_after(5, refuse="NodeAffinity")
    assert why_no_log(pod, "main") is None
    assert texts(pod) == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({}, "one\ntwo\nthree\n", id="everything"),
        pytest.param({"tailLines": "2"}, "two\nthree\n", id="the last two"),
        pytest.param({"tailLines": "0"}, "", id="none"),
        pytest.param({"tailLines": "9"}, "one\ntwo\nthree\n", id="more than there are"),
        pytest.param({"limitBytes": "5"}, "one\nt", id="five bytes"),
        pytest.param({"sinceSeconds": "15"}, "three\n", id="the last 15 seconds"),
        pytest.param({"sinceTime": "1970-01-01T00:00:20Z"}, "two\nthree\n", id="since a moment"),
        pytest.param({"tailLines": "1", "timestamps": "true"}, "1970-01-01T00:00:30.000Z three\n", id="with times"),
    ],
)
def test_a_query_narrows_the_log(query: dict[str, str], expected: str) -> None:
    assert rendered(LINES, log_query(query, now_s=40.0)).decode() == expected


def test_following_is_understood() -> None:
    assert log_query({"follow": "true"}, now_s=0.0) == LogQuery(follow=True)


@pytest.mark.parametrize("query", [{"tailLines": "x"}, {"sinceTime": "yesterday"}, {"sinceSeconds": ""}])
def test_a_query_that_cannot_be_read_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        log_query(query, now_s=0.0)
