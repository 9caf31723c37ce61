"""A word of a newer version in a status or a spec, after a roll-back: the job goes on, and can be deleted."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from coda.allocator import Category
from coda.model.job import SharingWish
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.stops import stop_from_json
from coda_kube.objects.read import job_from_json
from coda_kube.objects.tuning_status import usual_cores
from coda_operator.view.job_record import record_from_json
from coda_operator.view.time_ledger import TimeLedger
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.reconcile.test_reconciler import reaches
from tests.operator_tests.rest_of_cluster import rest_of_cluster

DEFINITION = Path(__file__).resolve().parents[2] / "crds" / "trainingjobs.yaml"
NEWER = "Newer"
TIME = "2026-01-01T00:00:00Z"
STOP = {"cause": "Preempt", "by": "a/b", "time": TIME}
STATUS: Json = {
    "array": "GPU",
    "phase": "Running",
    "attempt": 2,
    "request": {"resources": {"cpu": "2", "nvidia.com/gpu": "1"}, "cpusPerReplica": 2},
    "trial": {"attempt": 1, "since": TIME, "outcome": "Passed"},
    "lastStop": {"attempt": 1, "cause": "Preempt", "by": "a/b", "answer": "Saved"},
    "delays": {"began": TIME, "since": TIME, "doing": "Running"},
    "conditions": [{"type": "Launched", "status": "True", "lastTransitionTime": TIME, "reason": "Launched"}],
    "failure": {"attempt": 1, "reason": "Failed", "retry": "Retried"},
    "sharing": {"class": "Guaranteed"},
    "placement": {
        "attempt": 2,
        "planId": "p",
        "epoch": 1,
        "generation": 1,
        "state": "Released",
        "nodes": ["n"],
        "cpusPerReplica": 2,
        "committedTime": TIME,
        "bindDeadline": TIME,
        "stop": STOP,
        "grant": {"sequence": 1, "state": "Granted", "coresPerReplica": 2, "time": TIME, "deadline": TIME},
    },
    "resize": {"attempt": 2, "sequence": 1, "state": "Done", "wanted": 2, "coresPerReplica": 2, "since": TIME},
    "tuning": {
        "attempt": 2,
        "phase": "Tuned",
        "search": {"start": 2, "gpus": 1, "leg": "Start", "trying": 2, "kept": 2},
        "answer": {"coresPerReplica": 2, "outcome": "Found"},
    },
}
"""A status with every field that is one of a list of words."""

WORDS: Json = {
    "category": "CV",
    "serviceClass": "Guaranteed",
    "successPolicy": "AllRanks",
    "onNodeLoss": "Restart",
    "dnsNames": "RankZero",
    "stopWhen": {"noImprovementEpochs": 3, "action": "Stop"},
}
"""Every field of a spec that is one of a list of words."""

HELD = ("lastStop", "placement", "resize", "trial")
"""The parts of the status that the life cycle reads."""


@cache
def enums(part: str) -> tuple[tuple[str, ...], ...]:
    """The places of all lists of words in the `spec` or `status` of the definition, Kubernetes' template left out."""
    found = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return tuple(sorted(place for place in _enums(found["properties"][part], ()) if place[0] != "template"))


def _enums(schema: Json, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if "enum" in schema:
        yield place
    for name, field in (schema.get("properties") or {}).items():
        yield from _enums(field, (*place, name))
    if "items" in schema:
        yield from _enums(schema["items"], (*place, "0"))


def with_word(place: tuple[str, ...]) -> Json:
    status = copy.deepcopy(STATUS)
    put_word(status, place)
    return status


def put_word(holder: Any, place: tuple[str, ...]) -> None:
    for name in place[:-1]:
        holder = holder[0] if isinstance(holder, list) else holder[name]
    assert place[-1] in holder, f"the object above has no {'.'.join(place)}"
    holder[place[-1]] = NEWER


def job_with(status: Json, **metadata: Any) -> Json:
    spec = yaml.safe_load(
        "{replicas: 1, gpusPerReplica: 1, cpusPerReplica: auto, retries: 0, successPolicy: AllRanks, suspend: false, "
        "startDeadlineSeconds: 60, onNodeLoss: Restart, template: {spec: {containers: [{name: m}]}}}"
    )
    spec |= copy.deepcopy(WORDS)
    named = {"name": "j", "namespace": "a", "uid": "u", "generation": 1, "resourceVersion": "1", **metadata}
    return {"metadata": named, "spec": spec, "status": status}


@pytest.mark.parametrize("place", enums("status"), ids=".".join)
@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
def test_every_list_of_words_may_have_one_more(place: tuple[str, ...], deleted: bool) -> None:
    """Only a phase cannot be guessed: such a job is left as it is, until it is deleted."""
    status = with_word(place)
    job = job_with(status, **({"deletionTimestamp": TIME} if deleted else {}))
    TimeLedger().see("u", status, 1.0)
    if place == ("phase",) and not deleted:
        return
    record = record_from_json("a/j", job)
    assert record.is_deleted is deleted
    planned = job_from_json(job, {})
    assert planned is not None
    assert planned.placement is not None


def test_an_order_with_an_unknown_cause_is_obeyed() -> None:
    order = stop_from_json(STOP | {"cause": NEWER})
    assert order is not None
    assert order.by == "a/b"


@pytest.mark.parametrize("place", [("phase",), *(place for place in enums("status") if place[0] in HELD)], ids=".".join)
async def test_a_job_with_a_word_of_a_newer_version_is_deleted(place: tuple[str, ...]) -> None:
    def change(job: Json) -> None:
        status = with_word(place)
        ours = job["status"]
        if place[0] == "placement":
            ours["placement"] |= {name: status["placement"][name] for name in {place[1], "state"}}
        else:
            ours[place[0]] = status[place[0]]

    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None):
        async with operator(api):
            job = api.submit("j")
            await reaches(api, job, "Running")
        api.change(job, change)
        async with operator(api):
            await asyncio.sleep(30)
            api.end(job)
            await asyncio.sleep(600)
            assert not api.exists(job)
            assert not api.pods()


@pytest.mark.parametrize("place", enums("spec"), ids=".".join)
def test_every_list_of_words_of_a_spec_may_have_one_more(place: tuple[str, ...]) -> None:
    """Operator, planner and agent read the job as if the field were not set."""
    job = job_with(STATUS)
    put_word(job["spec"], place)
    record = record_from_json("a/j", job)
    assert record.category is (None if place == ("category",) else Category.CV)
    planned = job_from_json(job, {})
    assert planned is not None
    assert planned.sharing is SharingWish.GUARANTEED
    known = {} if record.category is None else {"category": record.category.value}
    assert usual_cores(job["spec"], 8) == usual_cores({"gpusPerReplica": 1, **known}, 8)


@pytest.mark.parametrize("place", enums("spec"), ids=".".join)
async def test_a_job_that_asks_for_what_only_a_newer_version_knows_runs_and_is_deleted(place: tuple[str, ...]) -> None:
    spec = copy.deepcopy(WORDS)
    put_word(spec, place)
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api):
        job = api.submit("j", **spec)
        await reaches(api, job, "Running")
        api.end(job)
        await asyncio.sleep(600)
        assert not api.exists(job)
        assert not api.pods()
