"""An error of ours that leaves something out is counted once, and shown and said again while it does."""

from __future__ import annotations

import pytest

from coda.cycle import CycleResult
from coda.model.decision import Decision, Fault, WaitCode
from coda_extender.metrics import Metrics
from coda_extender.standing_faults import StandingFaults


def result(*found: Fault, apart: Fault | None = None, undecidable: int = 0) -> CycleResult:
    return CycleResult(
        decision=Decision(faults=found),
        reviews=(),
        decided_on={},
        jobs_by_code={WaitCode.UNDECIDABLE: undecidable} if undecidable else {},
        gpus_wanted=0,
        gpus_unmatched=0,
        wake_s=None,
        apart=apart,
    )


def test_it_is_said_again_until_nothing_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now_s, metrics = [0.0], Metrics()
    faults = StandingFaults(metrics, lambda: now_s[0])

    def shown() -> tuple[float | None, float | None]:
        value = metrics.registry.get_sample_value
        return value("coda_planner_set_apart", {"kind": "node"}), value("coda_planner_errors_total")

    def said() -> int:
        count = caplog.text.count("a bug of ours")
        caplog.clear()
        return count

    bad = Fault(nodes=("n2",), traceback="a bug of ours")
    faults.note(result(bad, apart=bad))
    assert (shown(), said()) == ((1, 1), 1)
    for _ in range(119):
        now_s[0] += 30.0
        faults.note(result(apart=bad))
        faults.say_again()
    assert (shown(), said()) == ((1, 1), 5), "in an hour"
    faults.note(result(undecidable=1))
    now_s[0] += 600.0
    faults.say_again()
    assert (shown(), said()) == ((0, 1), 1), "a job is still refused for it"
    faults.note(result())
    now_s[0] += 600.0
    faults.say_again()
    assert (shown(), said()) == ((0, 1), 0)


def test_what_is_judged_again_is_no_longer_named(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    faults = StandingFaults(Metrics(), lambda: now_s[0])
    first = Fault(nodes=("n1",), traceback="one bug")
    both = Fault(nodes=("n2", "n3"), quotas=("team/q",), traceback="another bug")
    faults.note(result(first, both, apart=Fault(nodes=("n1", "n2", "n3"), quotas=("team/q",))))
    faults.note(result(apart=Fault(nodes=("n2",), quotas=("team/q",)), undecidable=1))
    caplog.clear()
    now_s[0] = 600.0
    faults.say_again()
    (said,) = caplog.messages
    assert said == "the planner still leaves out what it could not judge, n2, team/q: another bug"


def test_a_replica_that_decides_no_more_shows_nothing() -> None:
    metrics = Metrics()
    faults = StandingFaults(metrics)
    faults.note(result(apart=Fault(quotas=("team/q",))))
    assert metrics.registry.get_sample_value("coda_planner_set_apart", {"kind": "quota"}) == 1
    faults.forget()
    assert metrics.registry.get_sample_value("coda_planner_set_apart", {"kind": "quota"}) == 0
