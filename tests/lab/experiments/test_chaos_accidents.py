"""Accidents: a pure schedule, a clock that jumps for one process, an older definition, and books after a restore."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from coda_kube.objects.json_types import Json
from coda_lab.checker import Breach, Invariant
from coda_lab.experiments.chaos.accidents import LASTS_S, Accident, Mishap, accidents, timeline
from coda_lab.experiments.chaos.happenings import Happened, older
from coda_lab.experiments.chaos.jumping_clock import environ, set_clock
from coda_lab.experiments.chaos.schedule import salvos, schedule
from coda_lab.host.paths import crds
from coda_lab.install import objects_in
from tests.lab.experiments.test_chaos_report import outcome
from tests.lab.experiments.test_load_account import account_of, job, see

GOLDEN = [
    ("a Lease is deleted", 7.79),
    ("an older definition is applied for a while", 26.37),
    ("all nodes are cut off", 94.02),
]


def happened(*, jump_s: float = 0.0, target: str = "", problems: tuple[str, ...] = ()) -> Happened:
    mishap = Mishap(number=1, accident=Accident.CLOCK_JUMP, lasts_s=10.0, target=target, jump_s=jump_s)
    return Happened(mishap=mishap, what="it", began_s=100.0, ended_s=110.0, recovered_s=112.0, problems=problems)


def test_the_accidents_of_a_seed_never_change() -> None:
    assert [(each.accident.value, each.lasts_s) for each in accidents(7, 3)] == GOLDEN


@pytest.mark.parametrize("seed", range(3))
def test_each_kind_comes_as_often_as_its_number_allows(seed: int) -> None:
    found = accidents(seed, 23)
    counts = Counter(each.accident for each in found)
    assert (set(counts), max(counts.values()) - min(counts.values())) == (set(Accident), 1)
    for each in found:
        low, high = LASTS_S[each.accident]
        assert low <= each.lasts_s <= high
        assert bool(each.jump_s) is (each.accident is Accident.CLOCK_JUMP)


def test_only_the_asked_kinds_come() -> None:
    assert {each.accident for each in accidents(1, 5, only=(Accident.DRAIN,))} == {Accident.DRAIN}


def test_accidents_are_spread_between_the_salvos_and_none_is_left_out() -> None:
    faults, mishaps = schedule(1, kills=20, stops=4, cuts=4), accidents(1, 5)
    found = timeline(faults, mishaps)
    assert tuple(each for each in found if isinstance(each, Mishap)) == mishaps
    assert tuple(each for each in found if not isinstance(each, Mishap)) == salvos(faults)
    places = [number for number, each in enumerate(found) if isinstance(each, Mishap)]
    assert min(after - before for before, after in pairwise(places)) > 1
    assert timeline((), mishaps) == mishaps


def test_a_clock_jumps_for_the_processes_that_follow_its_file_and_for_their_children(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    environment = os.environ | environ(clock)
    asks = "import subprocess, sys, time; print(time.time()); sys.stdout.flush()"
    child = f"{asks}; subprocess.run([sys.executable, '-P', '-c', 'import time; print(time.time())'])"

    def times() -> list[float]:
        ran = subprocess.run([sys.executable, "-P", "-c", child], env=environment, capture_output=True, check=True)
        return [float(line) for line in ran.stdout.split()]

    assert all(abs(each - time.time()) < 30 for each in times())
    set_clock(clock, -3600.0)
    assert all(abs(each + 3600 - time.time()) < 30 for each in times())


def test_an_older_definition_lacks_the_younger_fields_and_nothing_else() -> None:
    (definition,) = [each for each in objects_in(crds()) if each["spec"]["names"]["kind"] == "TrainingJob"]

    def fields(spec: Json) -> set[str]:
        schema = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
        return set(schema["properties"]["placement"]["properties"])

    assert fields(definition["spec"]) - fields(older(definition)["spec"]) == {"stop"}
    assert older(older(definition)) == older(definition)


def test_what_a_restore_takes_back_is_not_lost() -> None:
    account = account_of()
    with account.taking_back():
        see(account, job(phase="Running"), None)
    assert (account.problems(), account.open_jobs, account.as_json()["taken_back"]) == ((), 0, 1)


def test_a_job_that_was_never_seen_before_the_restore_is_taken_back_too() -> None:
    account = account_of()
    account.take_back({"j"}, ())
    assert (account.problems(), account.open_jobs) == ((), 0)


def test_a_failure_of_its_own_is_a_problem_of_a_job_whose_ranks_do_not_fail() -> None:
    account = account_of()
    see(account, job(phase="Running"), job(phase="Succeeded", attempt=2, failures=1))
    (problem,) = account.problems()
    assert problem.startswith("job j counts 1 failures of its own, and no rank of it fails")


def test_a_problem_of_an_accident_fails_the_run() -> None:
    found = outcome()
    assert found.problems() == ()
    found = replace(found, happened=(happened(problems=("3 gangs were given up",)),))
    assert found.problems() == ("3 gangs were given up",)


@pytest.mark.parametrize(
    ("jump_s", "target", "at_s", "excused"),
    [
        (3600.0, "planner", 105.0, True),
        (3600.0, "planner", 500.0, False),
        (-3600.0, "planner", 105.0, False),
        (3600.0, "operator", 105.0, False),
    ],
)
def test_a_planners_clock_that_is_ahead_accuses_it_of_nothing(
    jump_s: float, target: str, at_s: float, excused: bool
) -> None:
    breach = Breach(invariant=Invariant.PLAN_OVER_COMMITTED, time_s=at_s, objects=("Node/n",), sentence="full")
    found = replace(outcome(breaches=[breach]), happened=(happened(jump_s=jump_s, target=target),))
    assert (found.problems() == ()) is excused
