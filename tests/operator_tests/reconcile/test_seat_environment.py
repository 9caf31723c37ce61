"""A rank on a seat has the GPU of its seat and no other, whatever its template says of the variables that say so."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from coda_operator.reconcile.pod_spec import probe_pod, rank_pod
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.reconcile.test_pod_spec import JOB, PLAN
from tests.operator_tests.rest_of_cluster import plan_json, rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

ON_SEATS = replace(PLAN, gpus=(0, 3))
OPPORTUNISTIC = JOB | {"spec": JOB["spec"] | {"serviceClass": "Opportunistic"}}
OF_SEATS = ("NVIDIA_VISIBLE_DEVICES", "CODA_SOCKET", "CODA_SHARE", "CODA_LIBRARY", "CODA_PYTHON")
OWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CODA_HOST_RESERVE", "DATA")


def with_env(job: Json, main: list[Json], *, beside: list[Json] | None = None) -> Json:
    """The job with variables of its main container, and of one beside it and one before it."""
    changed = copy.deepcopy(job)
    spec = changed["spec"]["template"]["spec"]
    spec["containers"][0]["env"] = main
    if beside is not None:
        spec["containers"].append({"name": "beside", "image": "x", "env": beside})
        spec["initContainers"] = [{"name": "before", "image": "x", "env": copy.deepcopy(beside)}]
    return changed


def env_of(container: Json) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container.get("env") or ()}


@pytest.mark.parametrize("source", [{"value": "all"}, {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}])
def test_what_a_seat_sets_is_left_out_of_the_template(source: Json) -> None:
    """What the pod sets wins over what the kubelet adds for a seat."""
    job = with_env(OPPORTUNISTIC, [{"name": name, **source} for name in (*OF_SEATS, *OWN)])
    for pod in (rank_pod(job, ON_SEATS, 1), probe_pod(job, attempt=1, cores=4)):
        env = env_of(pod["spec"]["containers"][0])
        assert set(OWN) < env.keys()
        assert env.keys().isdisjoint(OF_SEATS)
    whole = env_of(rank_pod(job, PLAN, 1)["spec"]["containers"][0])
    assert {*OF_SEATS, *OWN} < whole.keys()


@pytest.mark.parametrize(
    ("said", "kept"), [("all", "void"), ("0,1", "void"), ("void", "void"), ("none", "none"), ("", "")]
)
def test_a_container_beside_the_one_with_the_seat_gets_no_gpu(said: str, kept: str) -> None:
    """Images of CUDA ask for all GPUs by themselves, so to leave the variable out would not do."""
    job = with_env(JOB, [], beside=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": said}, {"name": "A", "value": "1"}])
    spec, whole = rank_pod(job, ON_SEATS, 1)["spec"], rank_pod(job, PLAN, 1)["spec"]
    for container in (spec["containers"][-1], spec["initContainers"][0]):
        assert env_of(container) == {"NVIDIA_VISIBLE_DEVICES": kept, "A": "1"}
    assert env_of(whole["containers"][-1])["NVIDIA_VISIBLE_DEVICES"] == said


def test_a_template_without_these_variables_stays_as_it_is() -> None:
    job = with_env(JOB, [{"name": "DATA", "value": "1"}], beside=[{"name": "A", "value": "1"}])
    template = job["spec"]["template"]["spec"]
    pod = rank_pod(job, ON_SEATS, 1)["spec"]
    assert pod["containers"][1:] == template["containers"][1:]
    assert pod["initContainers"] == template["initContainers"]
    assert "initContainers" not in rank_pod(JOB, ON_SEATS, 1)["spec"]


@pytest.mark.parametrize(("names", "seats"), [(OF_SEATS[:2], True), (OWN, True), (OF_SEATS, False)])
async def test_one_event_of_an_attempt_says_what_was_left_out(names: tuple[str, ...], seats: bool) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        env = [{"name": name, "value": "1"} for name in names]
        job = api.submit(
            gpusPerReplica=1, template={"spec": {"containers": [{"name": "main", "image": "x", "env": env}]}}
        )
        await reaches(api, job, "Queued")
        plan = plan_json(api.item(job), plan_id="p") | ({"gpus": [0, 1]} if seats else {})
        api.change(job, lambda item: item["status"].update(placement=plan))
        await reaches(api, job, "Succeeded")
    told = [event["message"] for event in api.all("events") if event["reason"] == "VariablesLeftOut"]
    if seats and names == OF_SEATS[:2]:
        names_said = "CODA_SOCKET and NVIDIA_VISIBLE_DEVICES"
        assert told == [f"a seat on a shared GPU sets {names_said}: the template's own values are left out"]
    else:
        assert told == []
