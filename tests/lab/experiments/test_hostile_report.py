"""The verdict of a run beside hostile objects: what counts as harm, and what does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from coda_lab.checker import Breach, Invariant
from coda_lab.experiments.hostile.honest import HonestJob, Record, honest_jobs
from coda_lab.experiments.hostile.measures import Cycles
from coda_lab.experiments.hostile.report import Options, Outcome, PhaseSeen
from coda_lab.experiments.hostile.sender import Tally

MIB = 1 << 20
FITS = HonestJob(name="fits", after_s=0.0, replicas=1, gpus=8, run_s=1.0)
TOO_LARGE = HonestJob(name="too-large", after_s=0.0, replicas=1, gpus=16, run_s=1.0)


def phase(**changes: Any) -> PhaseSeen:
    fields: dict[str, Any] = {
        "jobs": (FITS, TOO_LARGE),
        "records": {
            "fits": Record(asked_s=10.0, started_s=12.0, phase="Succeeded"),
            "too-large": Record(asked_s=10.0, phase="Queued", codes={"NoNodeLargeEnough"}),
        },
        "all_done": True,
        "tally": Tally(stored=Counter({("Pod", "forged"): 5}), bytes_stored=MIB),
        "rows": {},
        "cycles": Cycles(count=100, total_s=1.0, up_to={}),
        "memory_before": {"extender-0": 50 * MIB},
        "memory_after": {"extender-0": 60 * MIB},
        "ended_processes": (),
        "tracebacks": {},
    }
    return PhaseSeen(**fields | changes)


def outcome(attack: PhaseSeen, *breaches: Breach, **changes: Any) -> Outcome:
    fields: dict[str, Any] = {"referee_failed": "", "restarts_by_part": {}, "versions": {}, "machine": {}}
    options = Options(count=5, seed=1)
    fields |= {"options": options, "control": phase(), "attack": attack, "breaches": breaches, "took_s": 1.0}
    return Outcome(**fields | changes)


def records(**changes: Any) -> dict[str, Record]:
    return {**phase().records, "fits": replace(phase().records["fits"], **changes)}


def breach(name: str) -> Breach:
    return Breach(invariant=Invariant.WAITING_UNEXPLAINED, time_s=0.0, objects=(name,), sentence="said nothing")


def test_a_run_that_changes_nothing_passes() -> None:
    found = outcome(phase())
    assert found.problems() == []
    assert found.as_json()["passed"]


@pytest.mark.parametrize(
    ("attack", "problem"),
    [
        ({"records": records(phase="Failed")}, "fits is Failed, beside harmless objects Succeeded"),
        ({"records": records(failures=1, attempt=2)}, "fits: attempt 2, failures 1, disruptions 0"),
        ({"records": records(started_s=30.0)}, "fits starts 18.0 s later"),
        ({"records": records(codes={"Unreadable"})}, "honest jobs waited for ['Unreadable']"),
        ({"all_done": False}, "the honest jobs had not all ended after 240 s"),
        ({"cycles": Cycles(count=100, total_s=2.1, up_to={})}, "planning cycles take 2.1 times as long"),
        ({"cycles": Cycles(count=100, total_s=1.0, errors=2, up_to={})}, "2 errors of the planner"),
        ({"ended_processes": ("operator-0",)}, "a process of operator-0 ended"),
        ({"tracebacks": {"operator-0": 1}}, "1 traceback in the log of operator-0"),
        ({"memory_after": {"extender-0": 400 * MIB}}, "extender-0 grew by 350 MiB beside 1 MiB of objects"),
        ({"left": ("/api/v1/pods/h1",)}, "cannot be deleted: /api/v1/pods/h1"),
        ({"tally": Tally(stored=Counter({("Pod", "forged"): 4}))}, "only 4 of 5 objects were stored"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_harm_is_a_problem(attack: dict[str, Any], problem: str) -> None:
    assert any(each.startswith(problem) for each in outcome(phase(**attack)).problems())


def test_honest_jobs_may_wait_for_each_other() -> None:
    assert outcome(phase(records=records(codes={"InsufficientGPUs"}))).problems() == []


def test_a_part_that_ended_by_itself_is_a_problem() -> None:
    assert "extender-0 ended by itself 2 times" in outcome(phase(), restarts_by_part={"extender-0": 2}).problems()


def test_a_breach_counts_when_an_honest_job_or_its_nodes_suffer_it() -> None:
    """Of the eight nodes, the first four are the honest jobs'."""
    mine, theirs, node = breach("TrainingJob/default/fits"), breach("TrainingJob/hostile/h1"), breach("Node/node-0003")
    found = outcome(phase(), mine, theirs, node, breach("Node/node-0004"))
    assert found.breaches_of_others() == (mine, node)
    assert len(found.problems()) == 2


def test_a_stored_job_must_say_why_it_waits_unless_nobody_can_write_to_it() -> None:
    jobs = {
        "hostile/h1": "forged",
        "hostile/h2": "forged",
        "hostile/h3": "at_the_limit",
        "hostile/h4": "deep",
        "hostile/h5": "forged",
    }
    rows = {
        "hostile/h1": {"Phase": "Queued", "Why": "2 GPUs are missing", "Message": None},
        "hostile/h2": {"Phase": None, "Why": None, "Message": None},
        "hostile/h3": {"Phase": None, "Why": None, "Message": None},
        "hostile/h5": {"Phase": None, "Why": None, "Message": "not accepted yet: no service account"},
    }
    found = phase(tally=Tally(stored=Counter({("TrainingJob", "forged"): 5}), jobs=jobs), rows=rows)
    assert found.unexplained() == ["hostile/h2 (forged): phase none, and no reason"]


def test_honest_jobs_are_the_same_for_a_seed_and_hardly_wait_for_each_other() -> None:
    jobs = honest_jobs(7, count=100, gpus=32, over_s=300.0)
    assert jobs == honest_jobs(7, count=100, gpus=32, over_s=300.0)
    assert sum(job.never_fits for job in jobs) == 5
    work = sum(job.replicas * job.gpus * job.run_s for job in jobs if not job.never_fits)
    assert 0.25 < work / (32 * jobs[-1].after_s) < 0.35
    assert jobs[-1].after_s == 297.0
