"""Which container of an admitted pod is the rank's."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.names import ANNOTATION_MAIN
from coda_kube.objects.pods.main_container import main_container, main_status


def pod(*names: str, main: str | None = None, told: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "metadata": {"annotations": None if main is None else {ANNOTATION_MAIN: main}},
        "spec": {"containers": [{"name": name} for name in names]},
        "status": {"containerStatuses": [{"name": name, "ready": True} for name in told]},
    }


@pytest.mark.parametrize(
    ("item", "name"),
    [
        pytest.param(pod("train", "logs"), "train", id="a pod that says nothing: the first"),
        pytest.param(pod("train", "logs", main="train"), "train", id="as the template has it"),
        pytest.param(pod("proxy", "train", main="train"), "train", id="a webhook put its container first"),
        pytest.param(pod("proxy", "renamed", main="train"), "proxy", id="a name that no container has"),
    ],
)
def test_the_main_container_is_the_one_that_the_pod_names(item: dict[str, Any], name: str) -> None:
    assert main_container(item)["name"] == name


def test_the_status_is_that_of_the_main_container() -> None:
    assert main_status(pod("proxy", "train", main="train", told=("proxy", "train")))["name"] == "train"
    assert main_status(pod("proxy", "train", main="train", told=("proxy",))) == {}
    assert main_status({"metadata": {}, "spec": {"containers": [{"name": "train"}]}}) == {}
