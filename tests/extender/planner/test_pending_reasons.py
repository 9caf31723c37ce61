from typing import Any

import pytest

from coda.model import JobId, WaitCode
from coda.model.decision import Refusal, WaitReason
from coda_extender.planner.pending_reasons import (
    BATCH,
    LEAST_PER_SECOND,
    PER_SECOND,
    PendingNotice,
    PendingReasons,
    notice_for,
    pending_for,
)

JOB = JobId("default/gang")
SHORT = WaitReason(
    code=WaitCode.INSUFFICIENT_GPUS, message="8 short", numbers={"free": 1}, holders=(JobId("default/b"),)
)
REFUSAL = Refusal(JOB, 1, SHORT)
WRITTEN = {
    "code": "InsufficientGPUs",
    "cause": "Capacity",
    "message": "8 short",
    "generation": 1,
    "since": "2024-01-01T00:00:00.000Z",
    "numbers": {"free": 1},
    "holders": ["default/b"],
}


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        pytest.param(None, True, id="no reason yet: at once"),
        pytest.param(WRITTEN | {"code": "BackingOff"}, True, id="another code: at once"),
        pytest.param(WRITTEN | {"generation": 0}, True, id="the spec was edited: at once"),
        pytest.param(WRITTEN | {"numbers": {"free": 2}}, False, id="other numbers: in its turn"),
        pytest.param(WRITTEN | {"message": "9 short"}, False, id="another sentence: in its turn"),
        pytest.param(WRITTEN | {"holders": []}, False, id="other holders: in its turn"),
        pytest.param(WRITTEN, None, id="said already"),
    ],
)
def test_what_must_be_written(pending: Any, expected: bool | None) -> None:
    notice = notice_for(REFUSAL, {"status": {"pending": pending}})
    assert notice == (None if expected is None else PendingNotice(job=JOB, refusal=REFUSAL, urgent=expected))


def test_an_edit_that_is_not_accepted_is_said_only_after_a_second() -> None:
    edited = Refusal(JOB, 2, WaitReason(code=WaitCode.EDITED, message="edited"))
    told = notice_for(edited, {"status": {"pending": WRITTEN}})
    assert told == PendingNotice(job=JOB, refusal=edited, urgent=False)
    reasons = PendingReasons()
    assert told is not None
    reasons.put(told)
    assert reasons.pop_due(100.0) == ([], 1.0)
    reasons.discard(JOB)  # accepted
    assert reasons.pop_due(100.5) == ([], None)
    reasons.put(told)
    assert reasons.pop_due(101.0) == ([], 1.0)
    reasons.put(told)
    assert reasons.pop_due(102.0) == ([told], None)


@pytest.mark.parametrize("written", ["NoMatchingNode", "NeverFits", "UnknownTopologyLevel"])
def test_that_nothing_could_start_it_stays_until_the_edit_is_accepted(written: str) -> None:
    """The operator reads it then, however long it was away: what waited in vain has no age."""
    hopeless = {"status": {"pending": WRITTEN | {"code": written}}}
    edited, slow = (WaitReason(code=code, message="x") for code in (WaitCode.EDITED, WaitCode.CHANGED_MEANWHILE))
    assert notice_for(Refusal(JOB, 2, edited), hopeless) is None
    assert notice_for(Refusal(JOB, 1, slow), hopeless) is None
    assert notice_for(Refusal(JOB, 2, slow), hopeless) is not None, "accepted"
    assert notice_for(Refusal(JOB, 2, SHORT), hopeless) is not None


def test_a_job_that_is_gone_needs_no_reason() -> None:
    assert notice_for(REFUSAL, None) is None


def test_since_changes_with_the_code_only() -> None:
    kept = pending_for(REFUSAL, {"pending": WRITTEN | {"numbers": {}}}, now_s=2e9)
    changed = pending_for(REFUSAL, {"pending": WRITTEN | {"code": "BackingOff"}}, now_s=2e9)
    assert kept == WRITTEN
    assert changed == WRITTEN | {"since": "2033-05-18T03:33:20.000Z"}


@pytest.mark.parametrize(
    ("written", "generation", "is_kept"),
    [
        pytest.param("NeverFits", 1, True, id="the same"),
        pytest.param("NoMatchingNode", 1, True, id="nodes came that are too small: still in vain"),
        pytest.param("InsufficientGPUs", 1, False, id="it might have started before"),
        pytest.param("NeverFits", 0, False, id="what was in vain before the edit is taken off already"),
    ],
)
def test_since_when_it_waits_in_vain(written: str, generation: int, is_kept: bool) -> None:
    refusal = Refusal(JOB, 1, WaitReason(code=WaitCode.NEVER_FITS, message="too large"))
    told = pending_for(refusal, {"pending": WRITTEN | {"code": written, "generation": generation}}, now_s=2e9)
    assert told["since"] == (WRITTEN["since"] if is_kept else "2033-05-18T03:33:20.000Z")


def notice(number: int, *, urgent: bool, message: str = "") -> PendingNotice:
    job = JobId(f"default/job-{number}")
    reason = WaitReason(code=WaitCode.BACKING_OFF, message=message)
    return PendingNotice(job=job, refusal=Refusal(job, 1, reason), urgent=urgent)


def test_first_reasons_are_due_at_once_in_batches() -> None:
    reasons = PendingReasons()
    for number in range(BATCH + 1):
        reasons.put(notice(number, urgent=True))
    due, more_in_s = reasons.pop_due(0.0)
    assert (len(due), more_in_s) == (BATCH, 0.0)
    due, more_in_s = reasons.pop_due(0.0)
    assert (len(due), more_in_s) == (1, None)


def test_new_numbers_of_one_job_wait_their_turn() -> None:
    reasons = PendingReasons()
    reasons.put(notice(1, urgent=True))
    reasons.pop_due(100.0)
    reasons.put(notice(1, urgent=False))
    assert reasons.pop_due(101.0) == ([], 2.0)
    assert reasons.pop_due(103.0) == ([notice(1, urgent=False)], None)


def test_a_changed_code_does_not_wait_for_numbers() -> None:
    reasons = PendingReasons()
    reasons.put(notice(1, urgent=False))
    reasons.pop_due(100.0)
    reasons.put(notice(1, urgent=True))
    assert reasons.pop_due(100.1)[0] == [notice(1, urgent=True)]


@pytest.mark.parametrize(
    ("write_s", "per_second"),
    [(0.0, PER_SECOND), (0.005, PER_SECOND), (0.0125, 20.0), (0.1, 2.5), (0.25, 1.0), (30.0, LEAST_PER_SECOND)],
)
def test_numbers_of_a_thousand_jobs_are_rewritten_slowly_and_oldest_first(write_s: float, per_second: float) -> None:
    """The slower the API server, the fewer of them."""
    reasons = PendingReasons()
    for number in range(1000):
        reasons.put(notice(number, urgent=False))
    written: list[str] = []
    now_s = 1000.0
    while now_s < 1010.0:
        due, more_in_s = reasons.pop_due(now_s, write_s)
        written += [entry.job for entry in due]
        assert more_in_s is not None
        now_s += max(more_in_s, 0.001)
        for number in range(999, -1, -1):
            if f"default/job-{number}" not in written:
                reasons.put(notice(number, urgent=False, message=str(now_s)))
    assert len(written) == len(set(written)) == pytest.approx(per_second * 10 + per_second, abs=3)
    assert written[:3] == ["default/job-0", "default/job-1", "default/job-2"]
