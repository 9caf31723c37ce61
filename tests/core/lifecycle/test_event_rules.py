"""Which changes of progress are worth an event, and which may wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda.lifecycle import TEMPLATE_REFUSED, Progress
from coda.lifecycle.event_rules import is_news, makes_waiting_old, may_wait
from coda.lifecycle.transitions import LAUNCHED, STARTING
from coda.model import Phase

RUNNING = Progress(phase=Phase.RUNNING, attempt=2, generation=4, reason="Running")


@pytest.mark.parametrize(
    ("before", "after", "news"),
    [
        pytest.param({}, {"message": "back-off 20s"}, False, id="only the sentence changed"),
        pytest.param({}, {"reason": "ErrImagePull"}, True, id="another reason"),
        pytest.param({}, {"attempt": 3}, True, id="another attempt"),
        pytest.param({}, {"phase": Phase.RESTARTING}, True, id="another phase"),
        pytest.param(
            {"phase": Phase.LAUNCHED}, {"phase": Phase.STARTING, "reason": "Starting"}, False, id="all pods are bound"
        ),
        pytest.param({"phase": Phase.QUEUED}, {"phase": Phase.STARTING}, True, id="bound as soon as they existed"),
        pytest.param(
            {"phase": Phase.LAUNCHED}, {"phase": Phase.STARTING, "reason": "ErrImagePull"}, True, id="bound, in trouble"
        ),
        pytest.param({}, {"generation": 5}, False, id="an edit that changes nothing of what runs"),
        pytest.param({"phase": Phase.QUEUED}, {"generation": 5}, True, id="an edit of a waiting job was accepted"),
        pytest.param(
            {"phase": Phase.FAILED, "reason": TEMPLATE_REFUSED}, {"generation": 5}, True, id="or refused once more"
        ),
    ],
)
def test_what_is_worth_an_event(before: dict[str, Any], after: dict[str, Any], news: bool) -> None:
    was = replace(RUNNING, **before)
    assert is_news(was, replace(was, **after)) is news


@pytest.mark.parametrize(
    ("after", "waits"),
    [
        pytest.param(Progress(phase=Phase.LAUNCHED, reason=LAUNCHED), True, id="all pods exist"),
        pytest.param(Progress(phase=Phase.STARTING, reason=STARTING), True, id="all pods are bound"),
        pytest.param(Progress(phase=Phase.STARTING, reason="ErrImagePull"), False, id="trouble is told at once"),
        pytest.param(Progress(phase=Phase.FAILED, reason="RankFailed"), False, id="an end is told at once"),
        pytest.param(RUNNING, False, id="that it runs is told at once"),
    ],
)
def test_that_a_gang_is_on_its_way_is_told_only_if_it_does_not_run_soon(after: Progress, waits: bool) -> None:
    assert may_wait(after) is waits
    assert makes_waiting_old(after) is (after.phase is Phase.RUNNING)
