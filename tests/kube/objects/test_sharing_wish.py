"""What a TrainingJob asks for on GPUs that are shared, as the planner reads it."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model.job import SharingWish
from coda_kube.objects.read import job_from_json
from tests.extender.objects import job_json

OUT = [{"name": "CODA_SHARING", "value": "false"}]


@pytest.mark.parametrize("service_class", [None, "Guaranteed", "Auto", "Opportunistic"])
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (None, False),
        ([{"name": "A", "value": "false"}], False),
        ([{"name": "CODA_SHARING", "value": "true"}], False),
        ([{"name": "CODA_SHARING", "valueFrom": {}}], False),
        (OUT, True),
    ],
)
def test_a_job_of_any_class_may_keep_its_processes_to_itself(
    service_class: str | None, env: list[dict[str, Any]] | None, expected: bool
) -> None:
    """One of class Auto had the library in its processes all the same, on GPUs of its own."""
    item = job_json("a")
    item["metadata"]["namespace"] = "team"
    item["spec"] |= {"serviceClass": service_class} if service_class else {}
    item["spec"]["template"] = {"spec": {"containers": [{"name": "main"} | ({"env": env} if env else {})]}}
    job = job_from_json(item, {})
    assert job is not None
    assert (job.sharing, job.keeps_to_itself) == (SharingWish(service_class or "Guaranteed"), expected)
