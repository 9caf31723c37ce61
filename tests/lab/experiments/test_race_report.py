"""What a race's report calls a problem, and the options that are refused before anything is started."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from coda_lab.checker import Breach, Counts, Invariant
from coda_lab.checker import Report as Check
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.plans import JobPlan
from coda_lab.experiments.race.__main__ import FOREIGN_PER_GANG, main, options_from
from coda_lab.experiments.race.attempts import Attempts
from coda_lab.experiments.race.refusals import Refusals
from coda_lab.experiments.race.report import Outcome, Schedulers
from coda_lab.experiments.race.run import Options, gangs, rivals
from tests.lab.experiments.race_objects import pod, rank_pod

OVER_COMMITTED = Breach(
    invariant=Invariant.NODE_OVER_COMMITTED,
    time_s=1.0,
    objects=("Node/n1", "Pod/default/j-1-0", "Pod/default/other"),
    sentence="node n1: too much",
)


def outcome(
    schedulers: Schedulers, *pods: dict[str, Any], attempt: int = 1, breaches: tuple[Breach, ...] = ()
) -> Outcome:
    """One job of two ranks that succeeded in this attempt, after these pods were seen."""
    account, attempts, refusals = Account(), Attempts(lambda _job: 2, now=lambda: 150.0), Refusals()
    account.add_job(JobPlan(name="j", replicas=2, gpus_per_replica=1, cpus_per_replica=1, run_s=1.0))
    status = {"phase": "Succeeded", "attempt": attempt, "failures": 0, "disruptions": attempt - 1}
    account.on_job(None, {"metadata": {"name": "j"}, "status": status})
    for each in pods:
        attempts.on_pod(None, each)
        refusals.on_pod(None, each)
    return Outcome(
        seed=7,
        nodes="4x8x48",
        schedulers=schedulers,
        began_s=90.0,
        ended_s=190.0,
        drained_s=10.0,
        versions={"coda": "1"},
        machine={"cores": 2.0},
        check=Check(started_s=90.0, ended_s=190.0, breaches=breaches, counts=Counts()),
        account=account,
        attempts=attempts,
        refusals=refusals,
    )


WHOLE = tuple(rank_pod(rank, attempt=2, node="n1", phase="Succeeded") for rank in range(2))
REFUSED = rank_pod(0, node="n1", phase="Failed", reason="OutOfcpu")
ROLLED_BACK = (REFUSED, rank_pod(1, node="n2", deleting=True))


def test_with_two_schedulers_a_refused_attempt_that_was_rolled_back_whole_is_counted_and_no_problem() -> None:
    report = outcome(Schedulers.TWO, *ROLLED_BACK, *WHOLE, attempt=2, breaches=(OVER_COMMITTED,)).as_json()
    assert (report["passed"], report["breaches"], report["double_bookings_seen"]) == (True, [], 1)
    assert report["refused_pods"] == {"gangs": {"OutOfcpu": 1}, "foreign": {}}
    attempts = report["attempts"]
    assert (attempts["with_pods"], attempts["whole"], attempts["hit_by_a_refusal"]) == (2, 1, 1)
    assert json.loads(json.dumps(report)) == report


def test_with_one_scheduler_every_refusal_and_over_commit_is_a_problem() -> None:
    foreign = pod("other", node="n1", phase="Failed", reason="OutOfnvidia.com/gpu")
    found = outcome(Schedulers.ONE, *ROLLED_BACK, *WHOLE, foreign, attempt=2, breaches=(OVER_COMMITTED,)).problems()
    assert found == (
        "invariant (a): node n1: too much",
        "pod default/j-1-0 was refused by its kubelet: OutOfcpu",
        "pod default/other was refused by its kubelet: OutOfnvidia.com/gpu",
    )


def test_an_over_commit_that_no_kubelet_refused_is_a_breach_with_two_schedulers_too() -> None:
    assert outcome(Schedulers.TWO, *WHOLE, attempt=2, breaches=(OVER_COMMITTED,)).problems() == (
        "invariant (a): node n1: too much",
    )


def test_an_attempt_that_goes_on_without_its_refused_rank_is_a_problem() -> None:
    found = outcome(Schedulers.TWO, REFUSED, rank_pod(1, node="n2", phase="Running")).problems()
    assert found == (
        "attempt 1 of gang j lost 1 ranks to kubelets, and 1 of its pods live",
        "attempt 1 of gang j lost 1 ranks to kubelets, and none came after it",
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["--gangs", "0"], "--gangs 0: give 1 to 10000", id="no gangs"),
        pytest.param(["--foreign", "-1"], "--foreign -1: give 0 to", id="negative"),
        pytest.param(["--schedulers", "three"], "argument --schedulers: invalid choice", id="three schedulers"),
        pytest.param(["--longest-run", "0"], "--longest-run 0: give 0.1 to 86400 seconds", id="no run"),
        pytest.param(["--limit", "0"], "--limit 0: give 1 to 86400 seconds", id="no time"),
        pytest.param(["--nodes", "2x8x4"], "at least 16 cores", id="too few cores"),
        pytest.param(["--out", "/nowhere/at/all.json"], "is no folder that you may write to", id="no such folder"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert sentence in said.err


def options(*words: str) -> Options:
    return options_from(words)[0]


def test_the_options_of_a_race(tmp_path: Path) -> None:
    found, out = options_from(["--gangs", "3", "--schedulers", "two", "--out", str(tmp_path / "r.json")])
    assert (found.foreign_per_gang, found.schedulers, out) == (FOREIGN_PER_GANG, Schedulers.TWO, tmp_path / "r.json")


def test_the_same_seed_gives_the_same_gangs_and_rivals_which_all_can_succeed() -> None:
    first = options("--seed", "7", "--gangs", "50", "--longest-run", "2")
    assert list(gangs(first)) == list(gangs(first))
    assert list(islice(rivals(first), 50)) == list(islice(rivals(first), 50))
    assert len(list(gangs(first))) == 50
    assert all(each.failing_rank is None and each.act is None and each.run_s <= 2 for each in gangs(first))
