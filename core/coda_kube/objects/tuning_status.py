"""`status.tuning`, `status.placement.grant` and `status.resize` of a TrainingJob, to the core's values and back; and
what its `spec` says of the cores to begin with.

A search is written whole, so that the agent may be restarted between any two windows. Its curve is written once, as
`steps`, for people to read. Reading is strict: a state that no search can have raises InvalidInput with the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda.allocator import (
    Category,
    CoreSearch,
    Hints,
    SearchOutcome,
    SearchResult,
    Tuning,
    TuningPhase,
    start_cores,
)
from coda.allocator.curve import CurvePoint
from coda.allocator.pauses import CpuPauses
from coda.allocator.ranks import MOST_CORES
from coda.allocator.resize import Resize, ResizeState
from coda.allocator.watch import Watch
from coda.errors import InvalidInput
from coda.model.job import Wish, WishAnswer
from coda_kube.objects.dataclass_json import plain_from_value, value_from_plain
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_kube.words import word_or

Item = Mapping[str, Any]

_GRANTED, _REFUSED = "Granted", "Refused"
_CATEGORIES = {category.value: category for category in Category}
_SEARCH_HOLDS = ("floor", "tight")  # beside `search`, whose reader in older versions knows no other names
_SEARCHING = frozenset(phase.value for phase in (TuningPhase.MEASURING, TuningPhase.WISHING))
_TUNED_NOW = frozenset(phase.value for phase in (TuningPhase.MEASURING, TuningPhase.WISHING, TuningPhase.TUNED))


def tuning_json(tuning: Tuning) -> Json:
    """Return `status.tuning`."""
    status: Json = {"attempt": tuning.attempt, "phase": tuning.phase.value}
    status |= {name: text for name, text in (("reason", tuning.reason), ("message", tuning.message)) if text}
    if tuning.wish is not None:
        status["wish"] = _wish_json(tuning.wish)
    holds: Json = {}
    if tuning.watch is not None:
        watch = _watch_json(tuning.watch)
        holds["free"] = watch.pop("free")
        status["watch"] = watch
    if tuning.pauses is not None:
        status["pauses"] = _pauses_json(tuning.pauses)
    if isinstance(tuning.found, SearchResult):
        status["answer"] = {"coresPerReplica": tuning.found.cores, "outcome": tuning.found.outcome.value}
        status["answer"] |= {"start": tuning.found.start} if tuning.found.start else {}
    elif tuning.found is not None:
        search = plain_from_value(tuning.found)
        del search["curve"]
        holds |= {name: search.pop(name) for name in _SEARCH_HOLDS}
        status["search"] = {name: field for name, field in search.items() if field is not None}
    if tuning.found is not None:
        status["steps"] = [_step_json(point) for point in tuning.found.curve]
    held = {name: field for name, field in holds.items() if field}
    return status | ({"holds": held} if held else {})


def tuning_from_json(status: Item) -> Tuning | None:
    """Read `status.tuning` of a whole status; None if there is none. Raises InvalidInput."""
    tuning = status.get("tuning")
    if not tuning:
        return None
    try:
        return Tuning(
            attempt=_count(tuning, "attempt"),
            phase=TuningPhase(tuning.get("phase")),
            found=_found(tuning),
            wish=_wish(tuning),
            watch=_watch(tuning),
            pauses=_pauses(tuning),
            reason=tuning.get("reason") or "",
            message=tuning.get("message") or "",
        )
    except (InvalidInput, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"status.tuning: {error}") from error


def wish_from_json(status: Item, *, attempt: int) -> Wish | None:
    """Read only the last wish of that attempt: only the tuning needs more. Raises InvalidInput."""
    tuning = status.get("tuning")
    if not tuning or tuning.get("attempt") != attempt:
        return None
    return _wish(tuning)


def is_tuned_now(status: Item, *, attempt: int) -> bool:
    """True if somebody tunes this attempt, whose cores can be changed: only such a job asks for cores again."""
    tuning = status.get("tuning")
    if not tuning:
        return False
    return tuning.get("attempt") == attempt and tuning.get("phase") in _TUNED_NOW


def is_searching_now(status: Item, *, attempt: int) -> bool:
    """True while the cores of this attempt are being looked for."""
    tuning = status.get("tuning") or {}
    return tuning.get("attempt") == attempt and tuning.get("phase") in _SEARCHING


def held_cores_from_json(status: Item, *, attempt: int) -> int:
    """The cores per rank that the search of this attempt goes back to if fewer do not hold; 0 if nothing is searched,
    or nothing was measured. Anything that is no such number counts as 0."""
    tuning = status.get("tuning") or {}
    if not is_searching_now(status, attempt=attempt):
        return 0
    kept = (tuning.get("search") or {}).get("kept") or (tuning.get("answer") or {}).get("coresPerReplica")
    is_measured = any(step.get("coresPerReplica") == kept for step in tuning.get("steps") or ())
    return kept if is_measured and isinstance(kept, int) and 1 <= kept <= MOST_CORES else 0


def answer_json(answer: WishAnswer) -> Json:
    """Return `status.placement.grant`."""
    cores = {"coresPerReplica" if answer.granted else "mostCores": answer.cores}
    words = {name: text for name, text in (("code", answer.code), ("message", answer.message)) if text}
    return {
        "sequence": answer.sequence,
        "state": _GRANTED if answer.granted else _REFUSED,
        **cores,
        "time": time_from_seconds(answer.answered_s),
        "deadline": time_from_seconds(answer.deadline_s),
        **words,
    }


def answer_from_json(placement: Item) -> WishAnswer | None:
    """Read `grant` of a placement; None if no wish was answered yet, or with a word of a newer version."""
    grant = placement.get("grant")
    if not grant or grant["state"] not in (_GRANTED, _REFUSED):
        return None
    granted = grant["state"] == _GRANTED
    return WishAnswer(
        sequence=grant["sequence"],
        granted=granted,
        cores=grant["coresPerReplica" if granted else "mostCores"],
        answered_s=seconds_from_time(grant["time"]),
        deadline_s=seconds_from_time(grant["deadline"]),
        code=grant.get("code") or "",
        message=grant.get("message") or "",
    )


def resize_json(resize: Resize) -> Json:
    """Return `status.resize`."""
    words = {name: text for name, text in (("reason", resize.reason), ("message", resize.message)) if text}
    return {
        "attempt": resize.attempt,
        "sequence": resize.sequence,
        "state": resize.state.value,
        "wanted": resize.wanted,
        "coresPerReplica": resize.cores,
        "since": time_from_seconds(resize.since_s),
        **words,
    }


def resize_from_json(status: Item) -> Resize | None:
    """Read `status.resize` of a whole status; None if nothing was granted yet.

    A state that is not known reads as RESIZING: what the ranks have says how it goes on."""
    resize = status.get("resize")
    if not resize:
        return None
    return Resize(
        attempt=resize["attempt"],
        sequence=resize["sequence"],
        state=word_or(ResizeState.RESIZING, resize["state"]),
        wanted=resize["wanted"],
        cores=resize["coresPerReplica"],
        since_s=seconds_from_time(resize["since"]),
        reason=resize.get("reason") or "",
        message=resize.get("message") or "",
    )


def category_from_json(spec: Item) -> Category | None:
    """Return what kind of model it trains; None if the user did not say, or with a word of a newer version."""
    return _CATEGORIES.get(spec.get("category") or "")


def hints_from_json(spec: Item) -> Hints:
    """Return what the user said of the input pipeline, which guides the first guess of cores."""
    hints = spec.get("hints") or {}
    return Hints(
        pipelined=bool(hints.get("pipelined")),
        many_weights=bool(hints.get("manyWeights")),
        complex_processing=bool(hints.get("complexProcessing")),
    )


def usual_cores(spec: Item, ceiling_cores: int) -> int:
    """Return the cores per rank that such a job begins with if nothing is known of its owner's jobs."""
    return start_cores(category_from_json(spec), hints_from_json(spec), int(spec["gpusPerReplica"]), ceiling_cores)


def _wish_json(wish: Wish) -> Json:
    return {
        "sequence": wish.sequence,
        "coresPerReplica": wish.cores,
        "time": time_from_seconds(wish.since_s),
        "deadline": time_from_seconds(wish.deadline_s),
    }


def _wish(tuning: Item) -> Wish | None:
    wish = tuning.get("wish")
    if wish is None:
        return None
    return Wish(
        sequence=_count(wish, "sequence"),
        cores=_count(wish, "coresPerReplica"),
        since_s=seconds_from_time(wish["time"]),
        deadline_s=seconds_from_time(wish["deadline"]),
    )


def _watch_json(watch: Watch) -> Json:
    plain = plain_from_value(watch)
    cores, since_s = plain.pop("cores"), plain.pop("sinceS")
    return {"coresPerReplica": cores, "since": time_from_seconds(since_s), **plain}


def _watch(tuning: Item) -> Watch | None:
    watch = tuning.get("watch")
    if watch is None:
        return None
    plain = {**watch, "free": (tuning.get("holds") or {}).get("free", False)}
    plain["cores"], plain["sinceS"] = plain.pop("coresPerReplica"), seconds_from_time(plain.pop("since"))
    return value_from_plain(Watch, plain)


def _pauses_json(pauses: CpuPauses) -> Json:
    begun = {"coresPerReplica": pauses.cores, "since": time_from_seconds(pauses.since_s)}
    begun |= {"coreSeconds": pauses.core_s} if pauses.core_s else {}
    begun |= {"until": time_from_seconds(pauses.until_s)} if pauses.until_s else {}
    begun |= {"servedSeconds": int(pauses.served_s)} if pauses.served_s >= 1 else {}
    begun |= {"gpusPerReplica": pauses.rank_gpus} if pauses.rank_gpus else {}
    return begun | ({"gpus": pauses.gpus} if pauses.gpus else {})


def _pauses(tuning: Item) -> CpuPauses | None:
    pauses = tuning.get("pauses")
    if pauses is None:
        return None
    return CpuPauses(
        cores=_count(pauses, "coresPerReplica"),
        since_s=seconds_from_time(pauses["since"]),
        core_s=float(pauses.get("coreSeconds") or 0.0),
        until_s=seconds_from_time(pauses["until"]) if pauses.get("until") else 0.0,
        gpus=_count(pauses, "gpus") if "gpus" in pauses else 0,
        rank_gpus=_count(pauses, "gpusPerReplica") if "gpusPerReplica" in pauses else 0,
        served_s=float(pauses.get("servedSeconds") or 0),
    )


def _step_json(point: CurvePoint) -> Json:
    step = plain_from_value(point)
    work = step.pop("work")
    step |= {"cpuUse": work} if work else {}
    return {"coresPerReplica": step.pop("cores"), "gpuUtilization": step.pop("share"), **step}


def _found(tuning: Item) -> CoreSearch | SearchResult | None:
    search, answer = tuning.get("search"), tuning.get("answer")
    if search is not None and answer is not None:
        raise InvalidInput("a search that has its answer goes on no more")
    curve = tuple(_point(step, f"steps[{index}]") for index, step in enumerate(tuning.get("steps") or ()))
    if answer is not None:
        counts = [point.cores for point in curve]
        if counts != sorted(set(counts)):
            raise InvalidInput("steps must have each core count once, in order")
        return SearchResult(
            cores=_count(answer, "coresPerReplica"),
            outcome=SearchOutcome(answer["outcome"]),
            curve=curve,
            start=_count(answer, "start") if "start" in answer else 0,
        )
    if search is not None:
        holds = {name: field for name, field in (tuning.get("holds") or {}).items() if name in _SEARCH_HOLDS}
        return value_from_plain(CoreSearch, {**search, **holds, "curve": [plain_from_value(point) for point in curve]})
    if curve:
        raise InvalidInput("there are steps, but neither a search nor an answer")
    return None


def _point(step: Item, place: str) -> CurvePoint:
    plain = dict(step)
    plain["work"] = plain.pop("cpuUse", 0.0)
    try:
        plain["cores"], plain["share"] = plain.pop("coresPerReplica"), plain.pop("gpuUtilization")
    except KeyError as missing:
        raise InvalidInput(f"{place} has no {missing.args[0]}") from None
    return value_from_plain(CurvePoint, plain)


def _count(item: Item, name: str) -> int:
    number = item.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidInput(f"{name} must be a whole number from 1 on, got {number!r:.60}")
    return number
