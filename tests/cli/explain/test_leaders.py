"""`coda explain` says when nobody leads who could decide about a job."""

from __future__ import annotations

import asyncio
import time

import pytest

from coda_cli.explain.explain_command import explained, sentences_of
from coda_cli.explain.leaders import LEASES, leader_away, leaders_away
from coda_cli.explain.waiting import PLACED, Waiting
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
        ("placed", "coda-operator", "operator"),
        ("placed", "coda-planner", "planner"),
        ("edited", "coda-operator", "operator"),
    ],
)
async def test_says_whose_leader_is_away(name: str, lease: str, who: str) -> None:
    api, now_s = FakeApi(), time.time()
    new = {"metadata": {"name": "new", "namespace": "default"}, "spec": {"replicas": 1}}
    placed = job_json("placed")
    placed["status"]["placement"] = {"nodes": ["n1"], "version": 1, "attempt": 1, "state": "Released"}
    edited = job_json("edited", pending=PENDING | {"code": "Edited"})
    restarts = job_json("restarts", phase="Restarting", message="ended")
    for job in (job_json("queued", pending=PENDING), new, restarts, placed, edited):
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


def _line(name: str, wants: str = "", code: str = "") -> Waiting:
    return Waiting(name=f"t/{name}", wants=wants, code=code, since_s=1000.0)


async def test_each_leader_that_a_line_of_the_queue_waits_for_is_asked() -> None:
    api = FakeApi()
    queued, new = _line("q", "1 rank", "InsufficientGPUs"), _line("n")
    placed = _line("p", "1 rank", PLACED)
    api.set(LEASES, {"metadata": {"name": "coda-operator"}, "spec": {"holderIdentity": ""}})
    spec = {"holderIdentity": "a", "renewTime": time_from_seconds(time.time())}
    api.set(LEASES, {"metadata": {"name": "coda-planner"}, "spec": spec})
    assert [await leaders_away(api, lines) for lines in ([], [queued])] == ["", ""]
    for lines in ([new], [placed], [queued, placed, new]):
        assert await leaders_away(api, lines) == "no operator leads now"
    api.change(f"{LEASES}/coda-planner", lambda lease: lease["spec"].update(holderIdentity=""))
    assert await leaders_away(api, [new, queued]) == "no planner leads now, and no operator leads now"


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
