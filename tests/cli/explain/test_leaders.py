"""`coda explain` says when nobody leads who could decide about a job."""

from __future__ import annotations

import asyncio
import time

import pytest

from coda_cli.explain.explain_command import explained, sentences_of
from coda_cli.explain.leaders import LEASES, leader_away
from coda_cli.explain.waiting import Waiting
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, job_json

PENDING = {"code": "InsufficientGPUs", "message": "needs 8 GPUs", "generation": 1}


def test_a_job_without_a_reason_is_promised_one_only_while_that_is_usual() -> None:
    line = Waiting(name="team/train", wants="1 rank", since_s=1000.0)
    away = "the planner has not renewed its Lease for 3 h"

    def why(now_s: float, away: str = "") -> list[str]:
        return [one for one in sentences_of(line, 1, 1, now_s, away) if one.startswith(("Why", "Nothing"))]

    assert why(1010.0) == ["Why: the planner has not said so yet; it does within seconds."]
    silent = "Why: the planner has not said so, and it does within seconds as long as one runs."
    assert why(1100.0) == [silent]
    told = f"Nothing is decided now, and a reason may be old: {away}. Tell an administrator (coda doctor)."
    assert why(1010.0, away) == [silent, told]


@pytest.mark.parametrize(
    ("name", "lease", "who"),
    [
        ("queued", "coda-planner", "planner"),
        ("new", "coda-operator", "operator"),
        ("restarts", "coda-operator", "operator"),
    ],
)
async def test_says_whose_leader_is_away(name: str, lease: str, who: str) -> None:
    api, now_s = FakeApi(), time.time()
    new = {"metadata": {"name": "new", "namespace": "default"}, "spec": {"replicas": 1}}
    for job in (job_json("queued", pending=PENDING), new, job_json("restarts", phase="Restarting", message="ended")):
        api.set(JOBS, job)
    for one in ("coda-planner", "coda-operator"):
        spec = {"holderIdentity": "" if one == lease else "a", "renewTime": time_from_seconds(now_s)}
        api.set(LEASES, {"metadata": {"name": one}, "spec": spec})
    sentences = (await explained(api, "default", name)).sentences
    assert [one for one in sentences if "leads now" in one] == [
        f"Nothing is decided now, and a reason may be old: no {who} leads now. Tell an administrator (coda doctor)."
    ]
    if name == "restarts":
        assert "Why: Restarting: ended." in sentences


async def test_a_lease_that_nobody_renews_is_old_and_a_clock_that_is_ahead_is_not() -> None:
    api, now_s = FakeApi(), 1_800_000_000.0
    spec = {"holderIdentity": "a", "renewTime": time_from_seconds(now_s - 7200)}
    api.set(LEASES, {"metadata": {"name": "coda-planner"}, "spec": spec})
    asked = leader_away(api, "coda-planner", lambda: now_s, every_s=0.001)
    assert await asked == "the planner has not renewed its Lease for 2h"
    asking = asyncio.create_task(leader_away(api, "coda-planner", lambda: now_s, every_s=0.01))
    await asyncio.sleep(0.02)
    api.change(f"{LEASES}/coda-planner", lambda lease: lease["spec"].update(leaseTransitions=3))
    assert await asking == ""
