"""How the planner reads jobs and pods whose cores changed while they run."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.pod_requests import pod_amounts
from coda_kube.objects.read import Pod, job_from_json, pod_from_json
from tests.extender.objects import job_json, placement, rank_json


def pod_of(cores: int, *, allocated: int | None = None, actual: int | None = None, reason: str = "") -> dict[str, Any]:
    """A pod that wants this many cores, was promised `allocated` and has `actual`."""
    pod = rank_json("gang", 0, "n1", node="n1", plan="of-gang")
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(cores)
    main: dict[str, Any] = {"name": "main"}
    if allocated is not None:
        main["allocatedResources"] = {"cpu": str(allocated)}
    if actual is not None:
        main["resources"] = {"requests": {"cpu": str(actual)}}
    pod["status"] = {"phase": "Running", "containerStatuses": [main]}
    if reason:
        pod["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return pod


@pytest.mark.parametrize(
    ("pod", "cpu_m"),
    [
        pytest.param(pod_of(8), 8000, id="never resized"),
        pytest.param(pod_of(8, allocated=4, actual=4), 8000, id="growth counts once it is wanted"),
        pytest.param(pod_of(8, allocated=4, actual=4, reason="Deferred"), 8000, id="also while it is deferred"),
        pytest.param(pod_of(8, allocated=4, actual=4, reason="Infeasible"), 4000, id="not when it will never be"),
        pytest.param(pod_of(2, allocated=4, actual=4), 4000, id="a shrink frees nothing before it is allocated"),
        pytest.param(pod_of(2, allocated=2, actual=4), 4000, id="nor before it is applied"),
        pytest.param(pod_of(2, allocated=2, actual=2), 2000, id="then it does"),
    ],
)
def test_a_pod_counts_as_kube_scheduler_has_it(pod: dict[str, Any], cpu_m: int) -> None:
    assert pod_amounts(pod)["cpu"] == cpu_m


def of_one_size(
    wanted: str, *, allocated: str = "", actual: str = "", reason: str = "", overhead: str = ""
) -> dict[str, Any]:
    """A pod whose request is set as a whole (KEP-2837), as its kubelet reports it."""
    pod = pod_of(1)
    pod["spec"] |= {"resources": {"requests": {"cpu": wanted}}} | ({"overhead": {"cpu": overhead}} if overhead else {})
    gpus = {"nvidia.com/gpu": "4"}  # a kubelet reports all resources of the pod: what is not set as a whole stays
    pod["status"] |= {"allocatedResources": {"cpu": allocated} | gpus} if allocated else {}
    pod["status"] |= {"resources": {"requests": {"cpu": actual} | gpus}} if actual else {}
    pod["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return pod


@pytest.mark.parametrize(
    ("pod", "cpu_m"),
    [
        pytest.param(of_one_size("24"), 24_000, id="not reported yet"),
        pytest.param(of_one_size("10000", allocated="2", actual="2", reason="Infeasible"), 2000, id="will never be"),
        pytest.param(of_one_size("10000", reason="Infeasible"), 10_000_000, id="nobody says what it has"),
        pytest.param(of_one_size("24", allocated="2", actual="2", reason="Deferred"), 24_000, id="deferred"),
        pytest.param(of_one_size("2", allocated="24", actual="24"), 24_000, id="a shrink that nobody has taken up"),
        pytest.param(of_one_size("2", allocated="2", actual="24"), 24_000, id="nor applied"),
        pytest.param(of_one_size("2", allocated="2", actual="2", overhead="250m"), 2250, id="done, and its overhead"),
    ],
)
def test_a_pod_whose_request_is_set_as_a_whole_counts_as_kube_scheduler_has_it(pod: dict[str, Any], cpu_m: int) -> None:
    amounts = pod_amounts(pod)
    assert (amounts["cpu"], amounts["nvidia.com/gpu"]) == (cpu_m, 8)


def running(*, spec_cores: object = "auto", **status: Any) -> dict[str, Any]:
    item = job_json("gang", phase="Running", placement=placement("n1", plan="of-gang"), **status)
    item["metadata"]["namespace"] = "default"
    item["spec"]["cpusPerReplica"] = spec_cores
    return item


def pods(*items: dict[str, Any]) -> dict[str, Pod]:
    return {pod.id: pod for pod in map(pod_from_json, items)}


SINCE = "2026-01-01T00:00:00Z"
WISH = {"sequence": 2, "coresPerReplica": 9, "time": SINCE, "deadline": SINCE}
TUNING = {"attempt": 1, "phase": "Wishing", "wish": WISH}


def resize(state: str, *, attempt: int = 1) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "sequence": 1,
        "state": state,
        "wanted": 7,
        "coresPerReplica": 7,
        "since": SINCE,
    }


@pytest.mark.parametrize(
    ("status", "cores", "resized"),
    [
        pytest.param({}, 4, 0, id="never resized"),
        pytest.param({"resize": resize("Done")}, 7, 1, id="it has what it was given"),
        pytest.param({"resize": resize("Refused")}, 7, 1, id="or what it was left with"),
        pytest.param({"resize": resize("Resizing")}, 7, 0, id="a resize under way has not ended"),
        pytest.param({"resize": resize("Done", attempt=2)}, 4, 0, id="another attempt's says nothing"),
    ],
)
def test_a_job_asks_for_what_it_has_now(status: dict[str, Any], cores: int, resized: int) -> None:
    job = job_from_json(running(**status), {})
    assert job is not None
    assert (job.request.cpu_m, job.cpus_per_replica, job.resized) == (cores * 1000, cores, resized)


def test_a_wish_is_read_with_what_the_pods_count_with() -> None:
    job = job_from_json(running(tuning=TUNING), pods(pod_of(6)))
    assert job is not None
    assert job.wish is not None
    assert (job.wish.sequence, job.wish.cores, job.pod_cpu_m) == (2, 9, {0: 6000})


@pytest.mark.parametrize(("init", "least"), [({}, 0), ({"cpu": "3500m"}, 4)], ids=["nothing", "init container"])
def test_a_tuned_job_is_read_with_what_its_pods_ask_for_anyway(init: dict[str, str], least: int) -> None:
    pod = pod_of(6)
    pod["spec"]["initContainers"] = [{"name": "fetch", "resources": {"requests": init}}]
    tuned = job_from_json(running(tuning=TUNING), pods(pod))
    assert tuned is not None
    assert tuned.asked_anyway == least


def test_a_pod_whose_request_is_set_as_a_whole_asks_for_that_anyway() -> None:
    pod = pod_of(6)
    pod["spec"]["resources"] = {"requests": {"cpu": "7500m"}}
    tuned = job_from_json(running(tuning=TUNING), pods(pod))
    assert tuned is not None
    assert tuned.asked_anyway == 8


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(running(spec_cores=4, tuning=TUNING), id="it asked for a number of cores"),
        pytest.param(running(tuning=TUNING | {"attempt": 2}), id="it is of another attempt"),
        pytest.param(running(), id="there is none"),
    ],
)
def test_there_is_no_wish(item: dict[str, Any]) -> None:
    job = job_from_json(item, pods(pod_of(6)))
    assert job is not None
    assert (job.wish, job.pod_cpu_m) == (None, {})


def test_a_resized_job_is_read_with_what_its_pods_count_with_also_when_it_wishes_nothing() -> None:
    job = job_from_json(running(resize=resize("Done")), pods(pod_of(4)))
    assert job is not None
    assert (job.wish, job.cpus_per_replica, job.pod_cpu_m) == (None, 7, {0: 4000})
