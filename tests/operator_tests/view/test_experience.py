"""What tuning found is kept: for the job's next attempt, and for the next job of its owner and category."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from coda.allocator import Category, CoreSearch, SearchOutcome, SearchResult, Tuning, TuningPhase
from coda.allocator.curve import CurvePoint
from coda.allocator.pauses import CpuPauses
from coda.allocator.start_point import CORES_BY_CATEGORY, Tuned
from coda.allocator.watch import Watch
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.objects.tuning_status import tuning_json
from coda_operator.view.experience import LearnedCores
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster


async def until_phase(api: FakeCluster, job: str, phase: str) -> None:
    await api.until(lambda: api.status(job).get("phase") == phase, timeout_s=3600)


def tuned(cores: int) -> Json:
    answer = SearchResult(cores=cores, outcome=SearchOutcome.FOUND, curve=(CurvePoint(cores=cores, share=0.9),))
    return tuning_json(Tuning(attempt=1, phase=TuningPhase.TUNED, found=answer))


async def test_the_next_attempt_starts_with_the_cores_that_were_found() -> None:
    api = FakeCluster()
    ends: dict[int, int | None] = {1: None, 2: 0}
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: ends[attempt]) as rest, operator(api):
        job = api.submit(cpusPerReplica="auto", replicas=1)
        await until_phase(api, job, "Running")
        api.change(job, lambda item: item["status"].update(tuning=tuned(11)))
        ends[1] = 1
        rest.act()
        await api.until(
            lambda: api.status(job)["attempt"] == 2 and api.status(job)["phase"] == "Queued", timeout_s=3600
        )
        request = api.status(job)["request"]
        assert (request["cpusPerReplica"], request["resources"]["cpu"]) == (11, "11")
        assert "resize" not in api.status(job)


async def test_a_finished_job_teaches_where_the_next_of_its_owner_and_category_starts() -> None:
    """14 cores for two GPUs are 28 for four; of these, 23 are the part of the node that goes with four GPUs."""
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        first = api.submit("first", cpusPerReplica="auto", category="NLP", gpusPerReplica=2)
        await until_phase(api, first, "Running")
        api.change(first, lambda item: item["status"].update(tuning=tuned(14)))
        await until_phase(api, first, "Succeeded")
        for name, category, cores in (("alike", "NLP", 23), ("other", "CV", 4 * CORES_BY_CATEGORY[Category.CV])):
            job = api.submit(name, cpusPerReplica="auto", category=category, gpusPerReplica=4)
            await api.until(lambda job=job: "request" in api.status(job), timeout_s=60)  # type: ignore[misc]
            assert api.status(job)["request"]["cpusPerReplica"] == cores


async def test_a_tuning_that_cannot_be_read_is_ignored() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        first = api.submit("first", cpusPerReplica="auto", category="NLP")
        await until_phase(api, first, "Running")
        api.change(first, lambda item: item["status"].update(tuning={"attempt": 1, "phase": "Dancing"}))
        await until_phase(api, first, "Succeeded")
        job = api.submit("second", cpusPerReplica="auto", category="NLP")
        await api.until(lambda: "request" in api.status(job), timeout_s=60)
        assert api.status(job)["request"]["cpusPerReplica"] == 8 * CORES_BY_CATEGORY[Category.NLP]


def of_user(user: str, **status: Any) -> Json:
    spec = {"replicas": 1, "gpusPerReplica": 2, "cpusPerReplica": "auto", "category": "NLP"}
    return {"metadata": {"namespace": "team", "annotations": {ANNOTATION_USER: user}}, "spec": spec, "status": status}


def test_one_more_job_costs_the_same_after_thousands() -> None:
    """At its start an operator learns from the jobs of months, while nothing else happens."""
    learned, peaks = LearnedCores(), list[int]()

    def learn(owner: str) -> None:
        learned.learn(Tuned(owner=owner, category=Category.NLP, gpus_per_replica=2, cores_per_replica=9))

    for number in range(5000):
        learn(f"user-{number}")
    tracemalloc.start()
    try:
        for number in range(3):  # the mapping may grow in one of them
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            learn(f"next-{number}")
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert min(peaks) < 16_384  # bytes; 5000 owners are hundreds of times as many


def test_the_jobs_of_one_user_teach_nothing_about_anothers_in_the_same_namespace() -> None:
    learned = LearnedCores()
    learned.learn_from(of_user("ann", phase="Succeeded", tuning=tuned(14)))
    assert [learned.cores_for(of_user(user), 48, 48) for user in ("ann", "bob")] == [14, None]


BEGAN_S = 1_700_000_000.0


def short(cores: int, *, hours: float, core_s: float = 0.0, pauses: bool = True) -> Json:
    """A job of two GPUs, which usually begins with 10 cores, ended after so many hours."""
    answer = SearchResult(cores=cores, outcome=SearchOutcome.FOUND, curve=(CurvePoint(cores=cores, share=0.9),))
    known = CpuPauses(cores=10, since_s=BEGAN_S, core_s=core_s) if pauses else None
    tuning = tuning_json(Tuning(attempt=1, phase=TuningPhase.TUNED, found=answer, pauses=known))
    ended = time_from_seconds(BEGAN_S + hours * 3600)
    return of_user("ann", phase="Succeeded", tuning=tuning, completionTime=ended)


@pytest.mark.parametrize(
    ("job", "cores"),
    [
        pytest.param(short(2, hours=0.5), None, id="it ended before its first evaluation"),
        pytest.param(short(2, hours=0.5, pauses=False), None, id="of an older agent"),
        pytest.param(short(2, hours=4), 2, id="it would have evaluated by then"),
        pytest.param(short(6, hours=0.5, core_s=30.0), 6, id="it evaluated with fewer cores"),
        pytest.param(short(10, hours=0.5), 10, id="no fewer than usual"),
        pytest.param(short(12, hours=0.5), 12, id="more than usual"),
    ],
)
def test_only_a_job_that_could_show_its_pauses_teaches_fewer_cores_than_usual(job: Json, cores: int | None) -> None:
    learned = LearnedCores()
    learned.learn_from(job)
    assert learned.cores_for(of_user("ann"), 48, 48) == cores


def test_an_attempt_whose_cores_cannot_be_changed_gives_the_next_no_fewer_than_it_began_with() -> None:
    """One node of its gang may have refused a shrink that the others had carried out: nobody found those cores."""
    curve = (CurvePoint(cores=3, share=0.9),)
    search = CoreSearch(start=3, gpus=2, trying=3, kept=3, curve=curve)
    pauses = CpuPauses(cores=4, since_s=1.0)
    tuning = Tuning(attempt=1, phase=TuningPhase.ADVISING, found=search, pauses=pauses, reason="Infeasible")
    job = of_user("ann", tuning=tuning_json(tuning), gpus=4)
    job["spec"]["replicas"] = 2
    assert LearnedCores().cores_for(job, 48, 12) == 4


SEARCHED = CoreSearch(start=24, gpus=2, trying=23, kept=24, curve=(CurvePoint(cores=24, share=0.9),))
HAD_MORE = replace(
    SEARCHED, start=36, kept=36, curve=(CurvePoint(cores=24, share=0.8), CurvePoint(cores=36, share=0.9))
)
MEASURES = Tuning(attempt=1, phase=TuningPhase.MEASURING, found=SEARCHED)
WATCH = Watch(cores=40, level=0.9, noise=0.01, since_s=BEGAN_S, patience=3, confirmed=True)
ASKS_MORE = SearchResult(cores=40, outcome=SearchOutcome.FOUND, curve=(CurvePoint(cores=24, share=0.9),), start=24)


@pytest.mark.parametrize(
    ("tuning", "began", "cores"),
    [
        pytest.param(MEASURES, 24, 24, id="usual jobs have more"),
        pytest.param(Tuning(attempt=1, phase=TuningPhase.WISHING, found=ASKS_MORE), 24, 24, id="a wish without room"),
        pytest.param(MEASURES, 4, 24, id="a new job's part"),
        pytest.param(MEASURES, 32, 32, id="it had more than that"),
        pytest.param(replace(MEASURES, found=HAD_MORE), 24, 36, id="it measured with more"),
        pytest.param(
            Tuning(attempt=1, phase=TuningPhase.TUNED, found=ASKS_MORE, watch=WATCH),
            24,
            40,
            id="a window with more agreed",
        ),
    ],
)
def test_the_next_attempt_asks_for_no_more_than_it_had_or_a_new_job_may_have(
    tuning: Tuning, began: int, cores: int
) -> None:
    """The poorest node has 24 cores for such a rank: a gang that asks for 40 on each of two nodes waits for ever."""
    tuning = replace(tuning, pauses=CpuPauses(cores=40, since_s=BEGAN_S))
    job = of_user("ann", tuning=tuning_json(tuning), gpus=2, request={"cpusPerReplica": began})
    assert LearnedCores().cores_for(job, 64, 24) == cores


@pytest.mark.parametrize(("rank_gpus", "cores"), [(2, 9), (1, None), (0, 9)])
def test_a_job_whose_ranks_had_other_gpus_begins_as_a_new_one_though_it_has_as_many(
    rank_gpus: int, cores: int | None
) -> None:
    """It was edited while it was suspended: from one rank of eight GPUs to eight of one."""
    pauses = CpuPauses(cores=9, since_s=BEGAN_S, gpus=2, rank_gpus=rank_gpus)
    found = CoreSearch(start=9, gpus=2, trying=8, kept=9, curve=(CurvePoint(cores=9, share=0.9),))
    tuning = Tuning(attempt=1, phase=TuningPhase.MEASURING, found=found, pauses=pauses)
    assert LearnedCores().cores_for(of_user("ann", tuning=tuning_json(tuning), gpus=2), 64, 24) == cores
