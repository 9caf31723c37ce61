"""`status.ranks` of a NodeProfile: what an agent tells the agents of rank 0 of the ranks on its node.

Reading is strict, entry by entry: another node's agent may be of another version, or not Coda's at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from coda.allocator.curve import WindowReading
from coda.allocator.ranks import RankReport
from coda.allocator.window_samples import CpuWork, WindowResult
from coda.errors import InvalidInput
from coda_kube.objects.json_types import Json

Item = Mapping[str, Any]

MOST_RANKS: Final = 64
"""The most ranks that a NodeProfile tells of, as in its definition. Each has a GPU."""

DIGITS: Final = 6  # of a number in JSON: more is noise


def ranks_json(reports: Iterable[RankReport]) -> list[Json]:
    """Return `status.ranks`, by job and rank."""
    ordered = sorted(reports, key=lambda one: (one.job_uid, one.attempt, one.rank))
    return [_report_json(report) for report in ordered[:MOST_RANKS]]


def reports_from_json(profile: Item | None, faults: list[str] | None = None) -> tuple[RankReport, ...]:
    """Return the reports of a NodeProfile that can be read; none if there is no profile.

    `faults`: gets a sentence for each of the others."""
    found = []
    for item in (((profile or {}).get("status") or {}).get("ranks") or ())[:MOST_RANKS]:
        try:
            found.append(_report(item))
        except (InvalidInput, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if faults is not None:
                faults.append(f"{error!r:.200}")  # as repr: it may repeat words of the report
    return tuple(found)


def _report_json(report: RankReport) -> Json:
    result, reading, work = report.result, report.result.reading, report.result.work
    item: Json = {
        "jobUID": report.job_uid,
        "attempt": report.attempt,
        "rank": report.rank,
        "coresPerReplica": report.cores,
        "window": report.window,
    }
    if reading is not None:
        item["gpuUtilization"] = round(reading.share, DIGITS)
        item |= {"gpuVariance": _short(reading.variance), "gpuSteady": reading.steady}
    if work is not None:
        item |= {"cpuCores": round(work.cores, DIGITS), "cpuVariance": _short(work.variance), "cpuSteady": work.steady}
        item["throttledShare"] = round(work.throttled_share, DIGITS)
    said = {"heldUp": result.held_up, "paused": result.paused or None, "disturbed": result.disturbed or None}
    said["otherCores"] = result.other_cores or None
    return item | {name: word for name, word in said.items() if word is not None}


def _report(item: Item) -> RankReport:
    reading = work = None
    if "gpuUtilization" in item:
        reading = WindowReading(
            share=_number(item, "gpuUtilization"),
            variance=_number(item, "gpuVariance"),
            steady=_is(item, "gpuSteady") is True,
        )
    if "cpuCores" in item:
        work = CpuWork(
            cores=_number(item, "cpuCores"),
            variance=_number(item, "cpuVariance"),
            steady=_is(item, "cpuSteady") is True,
            throttled_share=_number(item, "throttledShare"),
        )
    result = WindowResult(
        reading=reading,
        paused=_is(item, "paused") is True,
        disturbed=_is(item, "disturbed") is True,
        other_cores=_is(item, "otherCores") is True,
        held_up=_is(item, "heldUp"),
        work=work if reading is not None else None,
    )
    return RankReport(
        job_uid=_text(item, "jobUID"),
        attempt=_whole(item, "attempt"),
        rank=_whole(item, "rank"),
        cores=_whole(item, "coresPerReplica"),
        window=_whole(item, "window"),
        result=result,
    )


def _short(variance: float) -> float:
    return float(f"{variance:.{DIGITS}g}")


def _text(item: Item, name: str) -> str:
    text = item[name]
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be a text, got {text!r:.60}")
    return text


def _number(item: Item, name: str) -> float:
    number = item[name]
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise InvalidInput(f"{name} must be a number, got {number!r:.60}")
    return float(number)


def _whole(item: Item, name: str) -> int:
    number = item[name]
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidInput(f"{name} must be a whole number, got {number!r:.60}")
    return number


def _is(item: Item, name: str) -> bool | None:
    said = item.get(name)
    if said is not None and not isinstance(said, bool):
        raise InvalidInput(f"{name} must be true or false, got {said!r:.60}")
    return said
