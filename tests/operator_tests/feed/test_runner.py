"""kopf looks for TrainingJobs once: it is started only when they are served."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.api.client import Client, error_from_answer
from coda_kube.objects.json_types import Json
from coda_operator.feed.runner import CHECK_EVERY_S, _served

NO_GROUP: Json = {"groups": [{"name": "apps"}]}
GROUP: Json = {"groups": [{"name": "apps"}, {"name": "coda.scheduler"}]}
NO_KIND: Json = {"resources": [{"name": "trainingjobs/status"}]}
KIND: Json = {"resources": [{"name": "trainingjobs"}, {"name": "trainingjobs/status"}]}


class Discovery(Client):
    """Answers /apis and the group's version in the order given, the last one for ever."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        answers = self._answers["groups" if path == "/apis" else "kinds"]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


@pytest.mark.parametrize(
    ("groups", "kinds", "looks"),
    [
        pytest.param([GROUP], [KIND], 0, id="served already"),
        pytest.param([NO_GROUP, NO_GROUP, GROUP], [KIND], 2, id="applied later"),
        pytest.param(
            [GROUP], [error_from_answer(404, "404 page not found\n"), NO_KIND, KIND], 2, id="not discovered yet"
        ),
        pytest.param([Outage("no route"), GROUP], [KIND], 1, id="the API server is away"),
    ],
)
async def test_it_waits_until_trainingjobs_are_served(groups: list[Any], kinds: list[Any], looks: int) -> None:
    await _served(Discovery(groups=list(groups), kinds=list(kinds)))
    assert asyncio.get_running_loop().time() == looks * CHECK_EVERY_S


async def test_it_says_once_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    answers = [NO_GROUP] * 5 + [Outage("no route")] * 3 + [GROUP]
    await _served(Discovery(groups=answers, kinds=[KIND]))
    assert [record.getMessage() for record in caplog.records] == [
        "TrainingJobs are not served: apply crds/trainingjobs.yaml; waiting",
        "TrainingJobs are not served: no route; waiting",
    ]
