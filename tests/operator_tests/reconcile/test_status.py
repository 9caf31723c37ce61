"""What the operator writes of a job: status fields, conditions with their times, events worth posting."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from coda.lifecycle import TEMPLATE_REFUSED, Progress
from coda.model import Phase
from coda.progress.stall import Reached, Stall
from coda_operator.reconcile.events import event_json
from coda_operator.reconcile.status import status_json
from coda_operator.view.job_record import progress_from_json

SPEC = {"replicas": 2, "gpusPerReplica": 8}
RUNNING = Progress(
    phase=Phase.RUNNING,
    attempt=2,
    failures=1,
    disruptions=3,
    generation=4,
    queued_s=100.0,
    not_before_s=150.0,
    served_s=86_400.0,
    launch_s=200.0,
    start_s=210.5,
    avoid={"n2": 400.0, "n1": 300.0},
    reason="Running",
    message="all 2 ranks have started",
)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [entry for entry in status["conditions"] if entry["type"] == kind]
    return dict(found)


def test_what_is_written_is_read_back_as_it_was() -> None:
    status = status_json(RUNNING, {}, {"cpusPerReplica": 6}, SPEC, 1000.0)
    assert progress_from_json(status) == RUNNING
    assert (status["gpus"], status["cores"]) == (16, 12)
    assert [entry["name"] for entry in status["avoidNodes"]] == ["n1", "n2"]


@pytest.mark.parametrize(
    "stall",
    [
        Stall(failures=4, counted=1, row=3, ran_s=720),
        Stall(failures=0, row=6, reached=Reached(step=0, saved_step=0, epoch=1.25)),
    ],
)
def test_uncounted_failures_are_read_back_as_they_were(stall: Stall) -> None:
    stalled = replace(RUNNING, stall=stall)
    status = json.loads(json.dumps(status_json(stalled, {}, None, SPEC, 1000.0)))
    assert progress_from_json(status) == stalled
    del status["stall"]  # as an older operator leaves it
    assert progress_from_json(status) == RUNNING


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    first = status_json(RUNNING, {}, None, SPEC, 1000.0)
    later = status_json(replace(RUNNING, message="still"), first, None, SPEC, 2000.0)
    assert condition(later, "Running") == condition(first, "Running")
    ended = status_json(replace(RUNNING, phase=Phase.RESTARTING, reason="NodeLost"), later, None, SPEC, 3000.0)
    turned = condition(ended, "Running")
    assert (turned["status"], turned["reason"]) == ("False", "NodeLost")
    assert turned["lastTransitionTime"] > condition(later, "Running")["lastTransitionTime"]


def test_a_job_whose_cores_nobody_looks_for_has_a_condition_until_somebody_does() -> None:
    assert "Tunable" not in {entry["type"] for entry in status_json(RUNNING, {}, None, SPEC, 1000.0)["conditions"]}
    untuned = replace(RUNNING, reason="NoAgent", message="node n1 has no agent")
    first = status_json(untuned, {}, None, SPEC, 1000.0)
    told = condition(first, "Tunable")
    assert (told["status"], told["reason"], told["message"]) == ("False", "NoAgent", "node n1 has no agent")
    second = status_json(replace(untuned, reason="TuningOff"), first, None, SPEC, 2000.0)
    assert condition(second, "Tunable")["reason"] == "TuningOff"
    assert condition(second, "Tunable")["lastTransitionTime"] == told["lastTransitionTime"]
    third = status_json(RUNNING, second, None, SPEC, 3000.0)
    assert condition(third, "Tunable")["status"] == "True"
    ended = status_json(replace(RUNNING, phase=Phase.SUCCEEDED), third, None, SPEC, 4000.0)
    assert "Tunable" not in {entry["type"] for entry in ended["conditions"]}


def test_a_refused_template_is_not_accepted() -> None:
    refused = Progress(phase=Phase.FAILED, reason=TEMPLATE_REFUSED, message="spec.foo: unknown field")
    status = status_json(refused, {}, None, SPEC, 1000.0)
    assert (condition(status, "Accepted")["status"], condition(status, "Finished")["status"]) == ("False", "True")


def test_an_event_points_at_its_job_and_stays_short() -> None:
    job = {"metadata": {"name": "bert", "namespace": "nlp", "uid": "u1", "resourceVersion": "7"}}
    failed = replace(RUNNING, phase=Phase.FAILED, message="x" * 5000)
    event = event_json(job, failed, identity="operator-0" * 20, now_s=1000.0)
    assert (event["type"], event["involvedObject"]["uid"]) == ("Warning", "u1")
    assert (len(event["message"]), len(event["reportingInstance"])) == (1000, 128)
