"""What stands in a job's status about its tuning, read and written."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.allocator import CoreSearch, CoreSearchConfig, SearchOutcome, SearchResult, Tuning, TuningPhase
from coda.allocator.core_search import CoreLimits, begin_search, next_search, refuse
from coda.allocator.curve import CurvePoint, WindowReading
from coda.allocator.pauses import CpuPauses
from coda.allocator.resize import Resize, ResizeState
from coda.allocator.watch import Watch
from coda.errors import InvalidInput
from coda.model.job import Wish, WishAnswer
from coda_kube.objects.tuning_status import (
    answer_from_json,
    answer_json,
    held_cores_from_json,
    resize_from_json,
    resize_json,
    tuning_from_json,
    tuning_json,
    wish_from_json,
)

WISH = Wish(sequence=3, cores=6, since_s=1000.5, deadline_s=1030.5)
ANSWER = SearchResult(
    cores=4,
    outcome=SearchOutcome.FOUND,
    curve=(CurvePoint(cores=3, share=0.5), CurvePoint(cores=4, share=0.9, windows=2)),
)
SEARCH = begin_search(4, 2, CoreLimits(most=8))


def through_the_api(status: dict[str, Any]) -> dict[str, Any]:
    """What an API server gives back: numbers without a fraction lose their point."""
    text: dict[str, Any] = orjson.loads(orjson.dumps(status))
    for step in text.get("tuning", {}).get("steps", ()):
        for name in ("gpuUtilization", "variance"):
            step[name] = int(step[name]) if step[name] == int(step[name]) else step[name]
    return text


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.sampled_from((1, 2, 8)), st.integers(0, 40), st.integers(0, 10_000))
def test_a_search_goes_on_from_its_status_as_if_nothing_had_happened(
    start: int, gpus: int, stop: int, seed: int
) -> None:
    """For any measurements, interrupted at any point."""
    rng, config, limits = random.Random(seed), CoreSearchConfig(), CoreLimits(most=24)
    found: CoreSearch | SearchResult = begin_search(start, gpus, limits)
    for _ in range(stop):
        tuning = Tuning(attempt=2, phase=TuningPhase.MEASURING, found=found, wish=WISH)
        assert tuning_from_json(through_the_api({"tuning": tuning_json(tuning)})) == tuning
        if isinstance(found, SearchResult):
            return
        if rng.random() < 0.2:
            found = refuse(found, limits, config)
        else:
            reading = WindowReading(share=rng.choice((0.0, rng.random(), 1.0)), variance=rng.random() / 1000)
            found = next_search(found, reading if rng.random() < 0.9 else None, limits, config)


@pytest.mark.parametrize("phase", TuningPhase)
def test_each_phase_is_read_as_it_was_written(phase: TuningPhase) -> None:
    tuning = Tuning(attempt=1, phase=phase, reason="CpuManager", message="GPU idle 38 %: 4 more cores would help")
    assert tuning_from_json({"tuning": tuning_json(tuning)}) == tuning


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(
    "found", [ANSWER, replace(ANSWER, start=6), SEARCH, replace(SEARCH, floor=2), replace(SEARCH, floor=3, tight=True)]
)
def test_a_watch_is_read_as_it_was_written(found: CoreSearch | SearchResult, free: bool) -> None:
    watch = Watch(
        cores=4, level=0.875, noise=0.25, since_s=1000.5, patience=6, confirmed=True, away=2, tries=1, free=free
    )
    pauses = CpuPauses(cores=8, since_s=1000.0)
    pauses = replace(pauses, core_s=120.5, until_s=1500.0, gpus=16, rank_gpus=8, served_s=7200.0) if free else pauses
    tuning = Tuning(attempt=1, phase=TuningPhase.TUNED, found=found, watch=watch, pauses=pauses)
    assert tuning_from_json(through_the_api({"tuning": tuning_json(tuning)})) == tuning


def test_a_version_that_knows_nothing_of_floors_reads_its_search_and_its_watch() -> None:
    watch = Watch(cores=4, level=0.875, noise=0.25, since_s=1000.5, patience=6, free=True)
    status = tuning_json(
        Tuning(attempt=1, phase=TuningPhase.MEASURING, found=replace(SEARCH, floor=3, tight=True), watch=watch)
    )
    assert status["holds"] == {"floor": 3, "tight": True, "free": True}
    assert not {"floor", "tight"} & set(status["search"]) | {"free"} & set(status["watch"])


def test_the_curve_stands_once_where_people_read_it() -> None:
    status = tuning_json(Tuning(attempt=1, phase=TuningPhase.TUNED, found=ANSWER))
    assert status == {
        "attempt": 1,
        "phase": "Tuned",
        "answer": {"coresPerReplica": 4, "outcome": "Found"},
        "steps": [
            {"coresPerReplica": 3, "gpuUtilization": 0.5, "variance": 0.0, "windows": 1},
            {"coresPerReplica": 4, "gpuUtilization": 0.9, "variance": 0.0, "windows": 2},
        ],
    }


@pytest.mark.parametrize(
    ("found", "cores"),
    [
        pytest.param(ANSWER, 4, id="the answer's"),
        pytest.param(replace(ANSWER, curve=()), None, id="of a search that measured nothing: none"),
        pytest.param(SEARCH, None, id="before the first window: none"),
        pytest.param(
            next_search(SEARCH, WindowReading(share=0.5), CoreLimits(most=8), CoreSearchConfig()),
            4,
            id="the best so far",
        ),
        pytest.param(None, None, id="none"),
    ],
)
def test_the_best_cores_are_those_that_were_measured(
    found: CoreSearch | SearchResult | None, cores: int | None
) -> None:
    assert Tuning(attempt=1, phase=TuningPhase.MEASURING, found=found).best_cores == cores


GOOD = tuning_json(Tuning(attempt=1, phase=TuningPhase.WISHING, found=SEARCH, wish=WISH))


def changed(path: str, to: Any) -> dict[str, Any]:
    status = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = status
    for parent in parents:
        place = place[parent]
    place[last] = to
    return {"tuning": status}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        pytest.param(changed("attempt", 0), "attempt must be a whole number from 1 on, got 0", id="no attempt"),
        pytest.param(changed("phase", "Dancing"), "'Dancing' is not a valid TuningPhase", id="unknown phase"),
        pytest.param(changed("wish.coresPerReplica", 0), "coresPerReplica must be", id="a wish for nothing"),
        pytest.param(changed("wish.sequence", True), "sequence must be", id="a sequence that is no number"),
        pytest.param(changed("wish.time", "noon"), "'noon' is not an RFC 3339 time", id="no time"),
        pytest.param(changed("wish", {"sequence": 1}), "coresPerReplica must be", id="half a wish"),
        pytest.param(changed("search.kept", 0), "at least one core", id="a search for nothing"),
        pytest.param(changed("search.mood", 1), "Search has no mood", id="a field no search has"),
        pytest.param(changed("watch", {}), "coresPerReplica", id="an empty watch"),
        pytest.param(
            changed(
                "watch", {"coresPerReplica": 1, "level": 2, "noise": 0, "patience": 1, "since": "1970-01-01T00:00:00Z"}
            ),
            "cannot have the level 2",
            id="a watch over more than all GPUs",
        ),
        pytest.param(changed("search", []), "list", id="a search that is a list"),
        pytest.param(changed("answer", {"coresPerReplica": 1, "outcome": "Found"}), "goes on no more", id="both"),
        pytest.param(changed("steps", [{"coresPerReplica": 4}]), "steps[0] has no gpuUtilization", id="half a step"),
        pytest.param(
            changed("steps", [{"coresPerReplica": 4, "gpuUtilization": 1.5}]), "0 to 1, got 1.5", id="too busy"
        ),
        pytest.param(changed("steps", [7]), "'int' object is not iterable", id="no step"),
    ],
)
def test_what_no_search_can_be_in_is_refused_in_one_sentence(status: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tuning_from_json(status)
    assert str(refused.value).startswith("status.tuning: ")
    assert why in str(refused.value)


def test_only_the_wish_of_the_current_attempt_counts() -> None:
    assert wish_from_json({"tuning": GOOD}, attempt=1) == WISH
    assert wish_from_json({"tuning": GOOD}, attempt=2) is None
    assert wish_from_json({}, attempt=1) is None


@pytest.mark.parametrize(
    "answer",
    [
        WishAnswer(sequence=3, granted=True, cores=6, answered_s=1001.0, deadline_s=1031.0),
        WishAnswer(
            sequence=4, granted=False, cores=5, answered_s=1.0, deadline_s=1.0, code="InsufficientCPU", message="no"
        ),
    ],
)
def test_an_answer_is_read_as_it_was_written(answer: WishAnswer) -> None:
    assert answer_from_json({"grant": answer_json(answer)}) == answer


@pytest.mark.parametrize("state", ResizeState)
def test_a_resize_is_read_as_it_was_written(state: ResizeState) -> None:
    resize = Resize(attempt=2, sequence=3, state=state, wanted=6, cores=4, since_s=7.5, reason="Deferred", message="m")
    assert resize_from_json({"resize": resize_json(resize)}) == resize


MEASURED = next_search(SEARCH, WindowReading(share=0.5), CoreLimits(most=8), CoreSearchConfig())


@pytest.mark.parametrize(
    ("tuning", "cores"),
    [
        pytest.param(Tuning(attempt=1, phase=TuningPhase.MEASURING, found=MEASURED), 4, id="a search"),
        pytest.param(Tuning(attempt=1, phase=TuningPhase.MEASURING, found=SEARCH), 0, id="nothing is measured yet"),
        pytest.param(Tuning(attempt=1, phase=TuningPhase.WISHING, found=ANSWER), 4, id="its end"),
        pytest.param(Tuning(attempt=1, phase=TuningPhase.TUNED, found=ANSWER), 0, id="an answer"),
        pytest.param(Tuning(attempt=2, phase=TuningPhase.MEASURING, found=MEASURED), 0, id="another attempt"),
        pytest.param(Tuning(attempt=1, phase=TuningPhase.STOPPED, found=MEASURED), 0, id="it stopped"),
    ],
)
def test_a_search_may_go_back_to_the_best_that_it_measured(tuning: Tuning, cores: int) -> None:
    assert held_cores_from_json(through_the_api({"tuning": tuning_json(tuning)}), attempt=1) == cores


@pytest.mark.parametrize("kept", [None, "4", 0, -1, 4000, 1.5])
def test_what_no_agent_writes_is_no_count_to_go_back_to(kept: Any) -> None:
    status = tuning_json(Tuning(attempt=1, phase=TuningPhase.MEASURING, found=MEASURED))
    status["search"]["kept"], status["steps"][0]["coresPerReplica"] = kept, kept
    assert held_cores_from_json({"tuning": status}, attempt=1) == 0
