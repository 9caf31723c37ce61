"""Orders to stop, and their announcement to a rank: JSON to the core's values and back.

The announcement is an annotation of each rank's pod. So it reaches the agent of each node by the watch that it has
anyway, and a job without an agent by the downward API.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coda.errors import InvalidInput
from coda.model import JobId
from coda.model.job import StopCause, StopOrder
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GROUP
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_kube.words import word_or

Item = Mapping[str, Any]

ANNOTATION_STOP: Final = f"{GROUP}/stop"
"""On the pod of a rank: it is to save and end. Written by the operator."""

ANSWER: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
"""What the id of an announcement looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a rank is told of a stop."""

    id: str  # the placement that ends; the job repeats it in its answer
    cause: str
    notice_s: float
    until_s: float  # seconds since 1970, by the API server's clock: its pods are deleted then


def stop_json(stop: StopOrder) -> Json:
    """Return `status.placement.stop`."""
    notice: Json = {"noticeSeconds": round(stop.notice_s)} if stop.notice_s else {}
    return {"cause": stop.cause.value, "by": stop.by, "time": time_from_seconds(stop.since_s)} | notice


def stop_from_json(stop: Item | None) -> StopOrder | None:
    """Read `status.placement.stop`. An order is obeyed, also for a cause that this version does not know."""
    if not stop:
        return None
    return StopOrder(
        cause=word_or(StopCause.PREEMPT, stop["cause"]),
        by=JobId(stop["by"]),
        since_s=seconds_from_time(stop["time"]),
        notice_s=float(stop.get("noticeSeconds") or 0),
    )


def saved_s_from_json(status: Item, *, attempt: int) -> float:
    """Return when this attempt was last seen to have saved, by `status.progress`; 0 if it never was.

    Never raises: what an agent wrote wrongly keeps no job from being planned."""
    progress = status.get("progress")
    if not isinstance(progress, Mapping) or progress.get("attempt") != attempt:
        return 0.0
    try:
        return seconds_from_time(progress.get("savedTime"))
    except InvalidInput:
        return 0.0


def lost_s_from_json(status: Item) -> float:
    """Return how many seconds of work the job's last stop threw away, by `status.lastStop`; 0 if it never was stopped.

    A job that ended by itself when it was told to has lost nothing: without an agent its end is its only answer."""
    last = status.get("lastStop") or {}
    return 0.0 if last.get("answer") == "Exited" else float(last.get("lostSeconds") or 0)


def announcement_text(announcement: Announcement) -> str:
    """Return the annotation's text."""
    fields = {
        "id": announcement.id,
        "cause": announcement.cause,
        "noticeSeconds": round(announcement.notice_s),
        "until": time_from_seconds(announcement.until_s),
    }
    return json.dumps(fields, separators=(",", ":"))


def announcement_from_metadata(metadata: Item) -> Announcement | None:
    """Read a pod's annotation; None if it has none. Raises InvalidInput for one that Coda did not write."""
    text = (metadata.get("annotations") or {}).get(ANNOTATION_STOP)
    if not text:
        return None
    try:
        fields = json.loads(text)
        found = Announcement(
            id=str(fields["id"]),
            cause=StopCause(fields["cause"]).value,
            notice_s=float(fields["noticeSeconds"]),
            until_s=seconds_from_time(str(fields["until"])),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(f"the annotation {ANNOTATION_STOP} cannot be read: {error!r:.100}") from error
    if not ANSWER.fullmatch(found.id) or not 0 < found.notice_s <= 86_400:
        raise InvalidInput(f"the annotation {ANNOTATION_STOP} is {text!r:.100}")
    return found
