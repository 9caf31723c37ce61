"""The planner knows how long jobs ran before it began, from the map that the operator publishes."""

from __future__ import annotations

import asyncio

import pytest

from coda.cycle import Part
from coda.errors import Outage
from coda.history import RunGroup
from coda.model import Job
from coda.model.decision import Start
from coda.policy import PolicyConfig
from coda_extender.planner.past_run_times import past_run_times
from coda_extender.planner.planner import PlannerConfig
from coda_extender.planner_process import Kind, Message, Orders, Question
from coda_extender.planner_process.messages import values_in_messages
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.run_times import map_json
from tests.builders import job, node

GROUPS = tuple(
    RunGroup(owner=owner, category="", gpus=1, jobs=40, run_s=(run_s,) * 9)
    for owner, run_s in (("ann", 60_000.0), ("bob", 60.0), *((f"user-{number}", 600.0) for number in range(120)))
)
CONFIG = PlannerConfig(policy=PolicyConfig(), scheduler_names=("coda",), memory_bytes=1 << 30)


class MapOnly(Client):
    """An API server with the map of run times, or that answers otherwise."""

    def __init__(self, answer: Json | Exception | None) -> None:
        self._answer = answer

    async def get(self, path: str, query: object = None) -> Json:
        assert path == "/api/v1/namespaces/coda-system/configmaps/coda-run-times"
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer is None:
            await asyncio.Event().wait()
        assert self._answer is not None
        return self._answer


async def first_start(client: Client, *jobs: Job) -> str:
    """Which of these starts where one GPU is free, as a new planner process decides."""
    process = await CONFIG.start_process(client)
    try:
        nodes = [("n1", node("n1", gpus=1))]
        values: list[Message] = [*values_in_messages(Part.NODES, nodes, is_whole=True)]
        values += values_in_messages(Part.JOBS, [(each.id, each) for each in jobs], is_whole=True)
        answers = [answer async for answer in process.ask([*values, Question(Kind.CYCLE, 1, 5000.0)])]
    finally:
        process.kill()
    (start,) = [item for answer in answers if isinstance(answer, Orders) for item in answer.items]
    assert isinstance(start, Start)
    return start.job


LONG, SHORT = job("long", gpus=1, user="ann", queued_s=1000.0), job("short", gpus=1, user="bob", queued_s=2000.0)


async def test_a_new_planner_process_puts_short_jobs_first() -> None:
    assert await first_start(MapOnly(map_json(GROUPS, ())), LONG, SHORT) == SHORT.id


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Outage("no route to the API server"), id="nobody answers"),
        pytest.param({"data": {"runTimes": "[{"}}, id="no JSON"),
        pytest.param({"data": {"runTimes": '[{"owner": "ann"}]'}}, id="other fields"),
        pytest.param(
            {"data": {"runTimes": '[{"owner":"a","category":"","gpus":1,"jobs":1,"runSeconds":7}]'}}, id="type"
        ),
        pytest.param(
            {"data": {"runTimes": '[{"owner":"a","category":"","gpus":1,"jobs":-4,"runSeconds":[7]}]'}}, id="no job"
        ),
        pytest.param({"metadata": {}}, id="no data"),
    ],
)
async def test_without_the_map_it_begins_without_a_past(answer: Json | Exception) -> None:
    assert await past_run_times(MapOnly(answer)) == ()


async def test_it_does_not_wait_for_an_answer_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_extender.planner.past_run_times._PATIENCE_S", 0.01)
    assert await first_start(MapOnly(None), LONG, SHORT) == LONG.id
