"""Every retry class on a real API server: kubelets serve the logs, the operator reads them and decides."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, submit, wait_for_phase

pytestmark = pytest.mark.e2e

OPERATORS = ("operator-0", "operator-1")
QUICK = {"CODA_FAILURE_BACKOFF_S": "0.2"}
SPEC = ClusterSpec(nodes="4x8x48", racks=1, environ_by_part=dict.fromkeys(OPERATORS, QUICK))


async def run(user: Client, name: str, log: str, *, until: str, code: int = 1, attempts: str = "") -> Json:
    """Rank 1 prints `log` and fails, in the named attempts or in all; the status when the phase is reached."""
    simulated = {f"exit-code.{attempts or 'rank-1'}": str(code), f"log.{attempts or 'rank-1'}": log}
    job = await submit(user, job_json(name, replicas=2, run_s=0.2, simulated=simulated))
    return (await wait_for_phase(user, job, until))["status"]  # type: ignore[no-any-return]


async def test_what_would_fail_again_stops_at_once_and_says_why(user: Client) -> None:
    status = await run(user, "imports", "ModuleNotFoundError: No module named 'apex'", until="Failed")
    failure = status["failure"]
    assert (status["attempt"], failure["reason"], failure["rank"], failure["retry"]) == (1, "Import error", 1, "no")
    assert failure["evidence"] == "ModuleNotFoundError: No module named 'apex'"
    assert "unread" not in failure
    assert "Import error" in status["message"]


async def test_a_broken_gpu_leads_elsewhere_and_does_not_count(user: Client) -> None:
    log = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    status = await run(user, "ecc", log, until="Succeeded", attempts="attempt-1")
    failure = status["failure"]
    assert (status["attempt"], status["failures"], failure["reason"]) == (2, 0, "GPU ECC error")
    assert failure["node"] not in status["placement"]["nodes"]


async def test_a_crash_is_tried_once_more(user: Client) -> None:
    status = await run(user, "crashes", "Segmentation fault (core dumped)", until="Failed", code=139)
    assert (status["attempt"], status["failures"], status["failure"]["repeats"]) == (2, 2, 2)


async def test_what_may_pass_is_tried_as_often_as_the_job_allows(user: Client) -> None:
    status = await run(user, "ports", "RuntimeError: Address already in use", until="Failed")
    assert (status["attempt"], status["failures"], status["failure"]["reason"]) == (4, 4, "MPI error")
