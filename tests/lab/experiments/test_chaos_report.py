"""What a run's report says, and the options that are refused before anything is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coda_lab.checker import Breach, Counts, Invariant
from coda_lab.checker import Report as Check
from coda_lab.checker.invariants import UNSAID
from coda_lab.experiments.chaos.__main__ import main, options_from
from coda_lab.experiments.chaos.faults import Struck, freed_of_others
from coda_lab.experiments.chaos.lending import Lent
from coda_lab.experiments.chaos.report import Outcome, schedule_json
from coda_lab.experiments.chaos.schedule import Fault, Kind, Target, schedule
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.recorded import Recorded
from coda_lab.experiments.load.stops import Stops


def struck(
    target: Target = Target.PLANNER,
    kind: Kind = Kind.KILL,
    *,
    number: int = 1,
    took_s: float | None = 3.0,
    **times: Any,
) -> Struck:
    began_s = times.pop("began_s", 100.0)
    fault = Fault(number=number, target=target, kind=kind, pause_s=1.0, lasts_s=2.0)
    usual = {"began_s": began_s, "ended_s": began_s + 2.0, "clock_s": began_s}
    recovered_s = None if took_s is None else began_s + took_s
    return Struck(fault=fault, part=target.value, recovered_s=recovered_s, **(usual | times))


def outcome(*faults: Struck, breaches: Sequence[Breach] = ()) -> Outcome:
    return Outcome(
        seed=7,
        nodes="4x8x48",
        began_s=90.0,
        ended_s=190.0,
        drained_s=10.0,
        versions={"coda": "1"},
        machine={"cores": 2.0},
        happened=(),
        struck=faults,
        check=Check(started_s=90.0, ended_s=190.0, breaches=tuple(breaches), counts=Counts()),
        account=Account(),
        restarts_by_part={"operator-0": 2, "etcd": 0},
        stops=Stops(),
        history=Recorded(jobs=0, missing=(), twice=()),
    )


def test_a_run_without_problems_passes() -> None:
    report = outcome(struck(), struck(Target.ETCD, Kind.STOP, number=2, took_s=4.5)).as_json()
    assert (report["passed"], report["problems"], report["seed"]) == (True, [], 7)
    assert report["faults_by_part"] == {"etcd": {"stop": 1}, "planner": {"kill": 1}}
    assert report["slowest_recovery_s"] == 4.5
    assert report["recovery_by_part"]["planner"] == {"count": 1, "median_s": 3.0, "slowest_s": 3.0, "never": 0}
    assert report["kills_by_part"] == {"planner": 1}
    assert report["planner_failover"] == {
        "budget_s": 15.0,
        "after_sigkill": {"count": 1, "median_s": 3.0, "slowest_s": 3.0, "never": 0},
        "taken_over": {"count": 0, "median_s": None, "slowest_s": None, "never": 0},
        "after_api_outage": {"count": 1, "median_s": 4.5, "slowest_s": 4.5, "never": 0},
        "after_other_faults": {"count": 0, "median_s": None, "slowest_s": None, "never": 0},
        "over": 0,
    }
    assert report["restarts_after_ending_by_themselves"] == {"operator-0": 2}
    assert report["faults"][0]["began_s"] == 10.0
    json.dumps(report)


@pytest.mark.parametrize(
    ("running", "failed", "problems"),
    [
        (8, 0, ()),
        (8, None, ()),
        (7, 0, ("1 of 8 CPU jobs do not run at the end",)),
        (8, 2, ("2 pods of a Job count as failed, though they were only evicted",)),
    ],
)
def test_a_run_fails_when_a_cpu_job_is_stranded_or_an_eviction_counts(
    running: int, failed: int | None, problems: tuple[str, ...]
) -> None:
    lent = Lent(cpu_jobs=8, running=running, failed=failed, evictions=3, quota_edits=4)
    assert replace(outcome(), lent=lent).problems() == problems


@pytest.mark.parametrize(
    ("faults", "problem"),
    [
        pytest.param([struck(took_s=15.1)], "planner (planner): progress after 15.1 s, the budget is 15 s", id="late"),
        pytest.param([struck(Target.API_SERVER, took_s=16.0)], "budget", id="late after an outage"),
        pytest.param([struck(Target.SCHEDULER, took_s=None)], "no progress afterwards", id="never"),
    ],
)
def test_a_failover_over_budget_fails_the_run(faults: list[Struck], problem: str) -> None:
    (said,) = outcome(*faults).problems()
    assert problem in said


def test_parts_without_a_budget_may_take_longer() -> None:
    assert outcome(struck(Target.OPERATOR, took_s=20.0)).problems() == ()


def test_a_breach_fails_the_run() -> None:
    breach = Breach(invariant=Invariant.STARTED_TWICE, time_s=1.0, objects=("Pod/a/b",), sentence="twice")
    assert outcome(breaches=[breach]).problems() == ("invariant (f): twice",)


def test_nobody_is_charged_for_what_the_other_fault_of_a_salvo_held_up() -> None:
    planner = struck(took_s=18.0)
    scheduler = struck(Target.SCHEDULER, Kind.STOP, number=2, took_s=17.0, began_s=101.0, ended_s=114.0, clock_s=114.0)
    freed = freed_of_others((planner, scheduler))
    assert [each.recovery_s for each in freed] == [4.0, 4.0]


def test_an_outage_is_not_charged_for_the_fail_over_of_an_operator_that_was_killed_with_it() -> None:
    operator = struck(Target.OPERATOR, took_s=21.0)
    outage = struck(Target.API_SERVER, number=2, took_s=23.0, clock_s=103.0)
    assert [each.recovery_s for each in freed_of_others((operator, outage))] == [19.0, 2.0]


def test_a_clock_that_stopped_before_the_other_fault_ended_is_left_as_it_is() -> None:
    planner = struck(took_s=11.0)
    operator = struck(Target.OPERATOR, Kind.STOP, number=2, took_s=20.0, ended_s=114.0, clock_s=114.0)
    assert freed_of_others((planner, operator))[0].recovery_s == 11.0


def test_the_schedule_reads_as_json() -> None:
    faults = schedule(1, kills=2, stops=1, cuts=1)
    assert json.loads(json.dumps(schedule_json(faults)))[0]["kind"] == faults[0].kind.value


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["--kills", "-1"], "--kills -1: give 0 to 10000", id="negative"),
        pytest.param(["--kills", "many"], "--kills: invalid int value: 'many'", id="no number"),
        pytest.param(["--nodes", "3x8"], "'3x8' is no shape", id="no shape"),
        pytest.param(["--nodes", "2x8x48,2x4x48"], "give equal nodes", id="unequal nodes"),
        pytest.param(["--nodes", "2x8x4"], "at least 16 cores", id="too few cores"),
        pytest.param(["--drain", "0"], "--drain 0: give 1 to 86400 seconds", id="no time to drain"),
        pytest.param(["--budget", "0"], "--budget 0: give 1 to 120 seconds", id="no time for a fail-over"),
        pytest.param(["--out", "/nowhere/at/all.json"], "is no folder that you may write to", id="no such folder"),
        pytest.param(["--bogus"], "unrecognized arguments: --bogus", id="unknown"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert sentence in said.err


def test_a_number_of_nodes_is_enough(tmp_path: Path) -> None:
    options, given = options_from(["--nodes", "100", "--kills", "50", "--out", str(tmp_path / "file.json")])
    assert (options.nodes, options.kills, options.stops, options.cuts) == ("100x8x48", 50, 10, 10)
    assert given.out == tmp_path / "file.json"


def test_the_plan_is_printed_without_running_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kills", "3", "--stops", "1", "--cuts", "0", "--seed", "7", "--plan"]) == 0
    assert json.loads(capsys.readouterr().out) == schedule_json(schedule(7, kills=3, stops=1, cuts=0))


@pytest.mark.parametrize(
    ("kind", "time_s", "invariant", "excused"),
    [
        pytest.param(Kind.DELAY, 101.0, Invariant.WAITING_UNEXPLAINED, True, id="while the link is slow"),
        pytest.param(Kind.DELAY, 106.0, Invariant.WAITING_UNEXPLAINED, True, id="soon after"),
        pytest.param(Kind.DELAY, 108.0, Invariant.WAITING_UNEXPLAINED, False, id="long after"),
        pytest.param(Kind.DELAY, 101.0, Invariant.POD_WITHOUT_PLAN, False, id="what no slow link explains"),
        pytest.param(Kind.KILL, 101.0, Invariant.WAITING_UNEXPLAINED, False, id="a kill is no slow link"),
    ],
)
def test_a_reason_is_late_by_the_planners_link_only_while_that_is_slow(
    kind: Kind, time_s: float, invariant: Invariant, *, excused: bool
) -> None:
    breach = Breach(invariant=invariant, time_s=time_s, objects=("TrainingJob/default/a",), sentence=f"a: {UNSAID}")
    report = outcome(struck(kind=kind), breaches=[breach]).as_json()
    assert (report["passed"], len(report["late_by_link"]), len(report["breaches"])) == (excused, excused, not excused)


def test_a_slow_link_excuses_no_reason_that_is_written_again_and_again() -> None:
    breach = Breach(
        invariant=Invariant.WAITING_UNEXPLAINED, time_s=101.0, objects=(), sentence="a: rewritten without a change"
    )
    assert not outcome(struck(kind=Kind.DELAY), breaches=[breach]).as_json()["passed"]
