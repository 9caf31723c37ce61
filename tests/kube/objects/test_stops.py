"""What objects say of stops and saves: orders, announcements, and when a job last saved."""

from __future__ import annotations

from typing import Any

import pytest

from coda.errors import InvalidInput
from coda.model import JobId
from coda.model.job import StopCause, StopOrder
from coda_kube.objects.pods.stops import (
    ANNOTATION_STOP,
    Announcement,
    announcement_from_metadata,
    announcement_text,
    lost_s_from_json,
    saved_s_from_json,
    stop_from_json,
    stop_json,
)

AT_S = 1_700_000_000.0


@pytest.mark.parametrize("notice_s", [0.0, 60.0])
def test_an_order_is_read_as_it_was_written(notice_s: float) -> None:
    order = StopOrder(cause=StopCause.PREEMPT, by=JobId("team/large"), since_s=AT_S, notice_s=notice_s)
    assert stop_from_json(stop_json(order)) == order
    assert ("noticeSeconds" in stop_json(order)) is (notice_s > 0)


def test_an_announcement_is_read_as_it_was_written() -> None:
    told = Announcement(id="0a1b", cause="Migrate", notice_s=60.0, until_s=AT_S)
    assert announcement_from_metadata({"annotations": {ANNOTATION_STOP: announcement_text(told)}}) == told
    assert announcement_from_metadata({}) is None


@pytest.mark.parametrize(
    "text",
    [
        "now",
        "[]",
        "{}",
        '{"id":"../x","cause":"Migrate","noticeSeconds":60,"until":"2026-11-25T00:00:00Z"}',
        '{"id":"x","cause":"Whim","noticeSeconds":60,"until":"2026-11-25T00:00:00Z"}',
        '{"id":"x","cause":"Migrate","noticeSeconds":-1,"until":"2026-11-25T00:00:00Z"}',
        '{"id":"x","cause":"Migrate","noticeSeconds":1e999,"until":"2026-11-25T00:00:00Z"}',
        '{"id":"x","cause":"Migrate","noticeSeconds":60,"until":"soon"}',
        "[" * 100_000,
    ],
)
def test_an_announcement_that_coda_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        announcement_from_metadata({"annotations": {ANNOTATION_STOP: text}})


@pytest.mark.parametrize(
    ("progress", "saved_s"),
    [
        pytest.param({"attempt": 2, "savedTime": "2023-11-14T22:13:20Z"}, AT_S, id="this attempt"),
        pytest.param({"attempt": 1, "savedTime": "2023-11-14T22:13:20Z"}, 0.0, id="an earlier attempt"),
        pytest.param({"attempt": 2}, 0.0, id="it has not saved"),
        pytest.param({"attempt": 2, "savedTime": "soon"}, 0.0, id="no time"),
        pytest.param({"attempt": 2, "savedTime": 7}, 0.0, id="a number"),
        pytest.param(None, 0.0, id="it says nothing"),
    ],
)
def test_when_a_job_last_saved(progress: Any, saved_s: float) -> None:
    assert saved_s_from_json({"progress": progress}, attempt=2) == saved_s


@pytest.mark.parametrize(
    ("last", "lost_s"),
    [
        pytest.param(None, 0.0, id="never stopped"),
        pytest.param({"answer": "Unasked", "lostSeconds": 900}, 900.0, id="without a notice"),
        pytest.param({"answer": "Saved", "lostSeconds": 2}, 2.0, id="it has saved"),
        pytest.param({"answer": "Late"}, 0.0, id="an object of an older version"),
        pytest.param({"answer": "Exited", "lostSeconds": 900}, 0.0, id="its end was its answer"),
    ],
)
def test_what_the_last_stop_threw_away(last: Any, lost_s: float) -> None:
    assert lost_s_from_json({"lastStop": last}) == lost_s
