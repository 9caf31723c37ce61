"""What a TrainingJob prefers, as the planner reads it."""

from __future__ import annotations

from coda.model.job import LocalityStep
from coda_kube.objects.read import job_from_json
from tests.extender.objects import Item, job_json


def item_json() -> Item:
    item = job_json("a")
    item["metadata"]["namespace"] = "team"
    return item


def test_preferred_levels_are_read_in_their_order() -> None:
    item = item_json()
    steps = [{"level": "node", "forSeconds": 60}, {"level": "rack", "forSeconds": 300}]
    item["spec"]["locality"] = {"required": "zone", "preferred": steps}
    job = job_from_json(item, {})
    assert job is not None
    assert (job.within, job.prefers) == ("zone", (LocalityStep("node", 60.0), LocalityStep("rack", 300.0)))


def test_a_job_without_locality_prefers_nothing() -> None:
    job = job_from_json(item_json(), {})
    assert job is not None
    assert (job.within, job.prefers) == (None, ())
