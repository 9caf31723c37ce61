"""Wishes for cores: each ends by a resize, a refusal or its job, and one that nobody answers is a problem."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from coda_lab.experiments.load.wishes import CUT_OFF_S, DEADLINE_S, SOON_S, Wishes

RUNS: Json = {"phase": "Running", "attempt": 1, "placement": {"nodes": ["n"], "cpusPerReplica": 8}}


class AgentClient:
    """Takes what is applied."""

    def __init__(self) -> None:
        self.applied: list[Json] = []

    async def apply(self, path: str, item: Json, *, manager: str) -> Json:
        self.applied.append(item)
        return item


def job(**status: Any) -> Json:
    metadata = {"uid": "u", "namespace": "red", "name": "grows"}
    return {"metadata": metadata, "spec": {"cpusPerReplica": "auto"}, "status": RUNS | status}


async def wished(now: list[float]) -> tuple[Wishes, AgentClient]:
    wishes, client = Wishes(frozenset({"n"}), seed=1, now=lambda: now[0]), AgentClient()
    wishes.on_job(None, job())
    await wishes._wish(client, job())  # type: ignore[arg-type]  # all of a client that is used
    return wishes, client


async def test_a_wish_is_written_as_the_agent_writes_it() -> None:
    _, client = await wished([100.0])
    (patch,) = client.applied
    assert (patch["metadata"]["name"], patch["metadata"]["uid"]) == ("grows", "u")
    wish = patch["status"]["tuning"]["wish"]
    assert wish["sequence"] == 1
    assert wish["coresPerReplica"] != 8


@pytest.mark.parametrize(
    ("status", "how"),
    [
        ({"resize": {"sequence": 1, "state": "Done", "coresPerReplica": 9}}, "resize Done"),
        ({"resize": {"sequence": 1, "state": "Refused"}}, "resize Refused"),
        (
            {"placement": {"nodes": ["n"], "grant": {"sequence": 1, "state": "Refused", "code": "InsufficientCPU"}}},
            "grant Refused InsufficientCPU",
        ),
        ({"phase": "Succeeded"}, "its job ended or stopped first"),
        ({"attempt": 2}, "its job ended or stopped first"),
        (None, "its job ended or stopped first"),
    ],
)
async def test_each_wish_ends_once(status: Json | None, how: str) -> None:
    now = [100.0]
    wishes, _ = await wished(now)
    end = None if status is None else job(**status)
    wishes.on_job(job(), end)
    wishes.on_job(job(), end)
    now[0] += 1000.0
    assert (wishes.as_json(), wishes.problems()) == ({how: 1}, ())


async def test_a_wish_that_nobody_answers_is_a_problem_while_its_job_runs() -> None:
    now = [100.0]
    wishes, _ = await wished(now)
    wishes.on_job(job(), job(resize={"sequence": 1, "state": "Resizing"}))
    now[0] += DEADLINE_S + SOON_S
    assert wishes.problems() == ()
    now[0] += 1.0
    assert wishes.problems() == ("wish 1 of job red/grows was never answered",)
    assert len(wishes.problems()) == 1


async def test_a_grant_that_nobody_carries_out_is_a_problem_once_its_nodes_must_be_back() -> None:
    now = [100.0]
    wishes, _ = await wished(now)
    granted = {"nodes": ["n"], "grant": {"sequence": 1, "state": "Granted", "coresPerReplica": 9}}
    wishes.on_job(job(), job(placement=granted))
    now[0] += DEADLINE_S + SOON_S + CUT_OFF_S
    assert wishes.problems() == ()
    now[0] += 1.0
    assert wishes.problems() == ("wish 1 of job red/grows was granted and never carried out or taken back",)


@pytest.mark.parametrize(
    ("placement", "may"), [({}, True), ({"gpus": [3]}, False), ({"stop": {"by": "red/other"}}, False)]
)
def test_nobody_tunes_a_job_on_seats_or_one_that_stops(placement: Json, may: bool) -> None:
    wishes = Wishes(frozenset({"n"}), seed=1)
    item = job(placement=RUNS["placement"] | placement)
    wishes.on_job(None, item)
    assert bool(wishes._running) is may
