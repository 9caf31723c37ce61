"""What a TrainingJob asks for on GPUs that are shared, as the planner reads it."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model.job import SharingWish
from coda_kube.objects.read import job_from_json
from tests.extender.objects import job_json

OUT = [{"name": "CODA_SHARING", "value": "false"}]


@pytest.mark.parametrize(
    ("service_class", "env", "expected"),
    [
        (None, None, SharingWish.GUARANTEED),
        ("Guaranteed", [{"name": "A", "value": "false"}], SharingWish.GUARANTEED),
        ("Guaranteed", [{"name": "CODA_SHARING", "value": "true"}], SharingWish.GUARANTEED),
        ("Guaranteed", [{"name": "CODA_SHARING", "valueFrom": {}}], SharingWish.GUARANTEED),
        ("Guaranteed", OUT, SharingWish.EXCLUSIVE),
        (None, OUT, SharingWish.EXCLUSIVE),
        ("Opportunistic", OUT, SharingWish.OPPORTUNISTIC),
        ("Auto", OUT, SharingWish.AUTO),
    ],
)
def test_a_guaranteed_job_may_keep_its_processes_to_itself(
    service_class: str | None, env: list[dict[str, Any]] | None, expected: SharingWish
) -> None:
    item = job_json("a")
    item["metadata"]["namespace"] = "team"
    item["spec"] |= {"serviceClass": service_class} if service_class else {}
    item["spec"]["template"] = {"spec": {"containers": [{"name": "main"} | ({"env": env} if env else {})]}}
    job = job_from_json(item, {})
    assert job is not None
    assert job.sharing is expected
