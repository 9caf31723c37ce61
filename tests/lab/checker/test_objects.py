"""What a pod asks of its node, and what of an object's JSON the referee keeps."""

from __future__ import annotations

from typing import Any

import pytest

from coda.errors import InvalidInput, InvalidQuantity
from coda_kube.objects.json_types import Json
from coda_lab.checker.objects import read_job, read_pod
from coda_lab.checker.pod_request import pod_request
from tests.lab.checker.checker_objects import affinity, job, pod, rank_pod


def container(name: str = "main", **requests: str) -> Json:
    return {"name": name, "resources": {"requests": requests}}


def sidecar(name: str, **requests: str) -> Json:
    return container(name, **requests) | {"restartPolicy": "Always"}


def spec(containers: list[Json], init: list[Json] | None = None, **more: Any) -> Json:
    return {"containers": containers, "initContainers": init or []} | more


@pytest.mark.parametrize(
    ("pod_spec", "status", "cpu_m"),
    [
        pytest.param(spec([container(cpu="1500m")]), {}, 1500, id="one container"),
        pytest.param(spec([container(cpu="1"), container("two", cpu="2")]), {}, 3000, id="containers add up"),
        pytest.param(spec([container(cpu="1")], [container("i", cpu="4")]), {}, 4000, id="a larger init step counts"),
        pytest.param(
            spec([container(cpu="5")], [container("i", cpu="4")]), {}, 5000, id="a smaller init step does not"
        ),
        pytest.param(spec([container(cpu="1")], [sidecar("s", cpu="2")]), {}, 3000, id="a sidecar runs beside"),
        pytest.param(
            spec([container(cpu="1")], [sidecar("s", cpu="2"), container("i", cpu="4")]),
            {},
            6000,
            id="an init step runs beside the sidecars started before it",
        ),
        pytest.param(
            spec([container(cpu="1")], [container("i", cpu="4"), sidecar("s", cpu="2")]),
            {},
            4000,
            id="but not beside those started after it",
        ),
        pytest.param(spec([container(cpu="1")], overhead={"cpu": "250m"}), {}, 1250, id="overhead comes on top"),
        pytest.param(
            spec([container(cpu="1")], resources={"requests": {"cpu": "8"}}), {}, 8000, id="pod-level replaces the sum"
        ),
        pytest.param(
            spec([container(cpu="8")]),
            {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "2"}}]},
            8000,
            id="growth takes its room from the moment it is asked for",
        ),
        pytest.param(
            spec([container(cpu="8")]),
            {
                "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "2"}}],
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
            },
            2000,
            id="but not where its kubelet never allows it",
        ),
        pytest.param(
            spec([container(cpu="1")]),
            {
                "containerStatuses": [
                    {
                        "name": "main",
                        "allocatedResources": {"cpu": "1"},
                        "resources": {"requests": {"cpu": "3"}},
                    }
                ]
            },
            3000,
            id="a shrink frees nothing before it is done",
        ),
    ],
)
def test_pod_request_in_cpu(pod_spec: Json, status: Json, cpu_m: int) -> None:
    assert pod_request({"spec": pod_spec, "status": status}) == {"cpu": cpu_m, "pods": 1000}


def test_pod_level_resources_leave_the_gpus_of_the_containers() -> None:
    pod_spec = spec([container(**{"cpu": "1", "nvidia.com/gpu": "2"})], resources={"requests": {"cpu": "4"}})
    assert pod_request({"spec": pod_spec}) == {"cpu": 4000, "nvidia.com/gpu": 2000, "pods": 1000}


def test_a_pod_is_pinned_only_when_every_term_names_the_same_node() -> None:
    pinned = rank_pod(0, pin="n1")
    assert read_pod(pinned).pinned_to == "n1"
    pinned["spec"]["affinity"] = affinity(["n1", "n2"])
    assert read_pod(pinned).pinned_to is None
    required = pinned["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    required["nodeSelectorTerms"] = [
        *affinity(["n1"])["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"],
        {"matchExpressions": []},
    ]
    assert read_pod(pinned).pinned_to is None


@pytest.mark.parametrize(
    ("status", "started"),
    [
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, False),
        ({"state": {"running": {}}}, True),
        ({"state": {"terminated": {"exitCode": 0, "startedAt": "2026-03-01T12:00:00Z"}}}, True),
        ({"state": {"terminated": {"exitCode": 137, "startedAt": None}}}, False),
        ({"state": {"waiting": {}}, "lastState": {"terminated": {"startedAt": "2026-03-01T12:00:00Z"}}}, True),
    ],
)
def test_a_container_that_ran_has_started(status: Json, started: bool) -> None:
    seen = rank_pod(0)
    seen["status"]["containerStatuses"] = [{"name": "main"} | status]
    assert read_pod(seen).started is started


def test_only_pods_of_other_schedulers_are_outsiders() -> None:
    assert read_pod(pod(scheduler="default-scheduler", bound="1970-01-01T00:00:07Z")).outsider_since_s == 7
    assert read_pod(pod(scheduler="coda")).outsider_since_s is None
    assert read_pod(rank_pod(0, scheduler="default-scheduler")).outsider_since_s is None


def test_an_unreadable_job_is_bad_input() -> None:
    strange = job()
    strange["status"]["request"]["resources"]["cpu"] = "many"
    with pytest.raises(InvalidQuantity, match="'many' is not a Kubernetes quantity"):
        read_job(strange)
    with pytest.raises(InvalidInput, match="'Dreaming' is not a phase"):
        read_job(job(phase="Dreaming"))
