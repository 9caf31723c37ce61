"""Each second of a wait is booked once in the status, also by an operator that takes over in the middle."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history import FinishedJob
from coda.history.delay_causes import SHORTAGES, DelayCause
from coda.history.time_spent import Doing, TimeSpent, counted
from coda.lifecycle import Progress
from coda.lifecycle.transitions import waits_anew
from coda.model import Phase
from coda.model.trial_run import TrialRun
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.trial_spec import trial_json
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_operator.view.time_ledger import (
    SETTLE_S,
    SPREAD_S,
    TimeLedger,
    account_from_json,
    account_json,
    readable_account,
)
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

WRITTEN_S = SETTLE_S + SPREAD_S + 1


def refuse(api: FakeCluster, job: str, cause: DelayCause) -> None:
    """As the planner says it."""
    pending = {"code": "X", "cause": cause.value, "message": "no", "since": time_from_seconds(0)}
    api.change(job, lambda item: item["status"].update(pending=pending))


def accept(api: FakeCluster, job: str) -> None:
    api.change(job, lambda item: item["status"].pop("pending", None))


def booked(status: Json) -> dict[str, int]:
    return {wait["cause"]: wait["seconds"] for wait in status["delays"]["waits"]}


def wait_s(status: Json) -> int:
    return int(seconds_from_time(status["launchTime"])) - int(seconds_from_time(status["queuedTime"]))


async def test_a_wait_is_booked_by_its_causes_as_they_change() -> None:
    api, kept = FakeCluster(), Kept()
    async with rest_of_cluster(api, plans=False) as rest, operator(api, store=kept):
        job = api.submit()
        await reaches(api, job, "Queued")
        for cause, seconds in ((DelayCause.QUOTA, 100), (DelayCause.FAIR_SHARE, 200), (DelayCause.GPUS, 300)):
            refuse(api, job, cause)
            await asyncio.sleep(seconds)
        accept(api, job)
        rest.plans = True
        rest.act()
        status = await reaches(api, job, "Running")
        assert sum(booked(status).values()) == wait_s(status)
        assert booked(status) | {"Coda": 0} == {
            "NamespaceQuota": 100,
            "FairShare": 200,
            "FragmentedGPUs": 300,
            "Coda": 0,
        }
        ended = await reaches(api, job, "Succeeded")
        assert booked(ended) == booked(status)
        await api.until(lambda: bool(kept.records), timeout_s=600.0)
    (record,) = kept.records
    assert dict(record.waits) == {cause: float(seconds) for cause, seconds in booked(ended).items()}
    assert record.wait_s + record.held_s == record.ended_s - record.queued_s


async def test_what_was_booked_survives_an_operator_that_was_killed() -> None:
    """The first one books and dies; nobody runs for ten minutes; the next one goes on with the last known cause."""
    api = FakeCluster()
    async with rest_of_cluster(api, plans=False) as rest:
        async with operator(api):
            job = api.submit()
            await reaches(api, job, "Queued")
            refuse(api, job, DelayCause.QUOTA)
            await asyncio.sleep(100)
            refuse(api, job, DelayCause.CORES)
            await asyncio.sleep(WRITTEN_S)
        assert booked(api.status(job)) == {"NamespaceQuota": 100}
        await asyncio.sleep(600)
        async with operator(api):
            await asyncio.sleep(300)
            refuse(api, job, DelayCause.FAIR_SHARE)
            await asyncio.sleep(50)
            accept(api, job)
            rest.plans = True
            rest.act()
            status = await reaches(api, job, "Running")
    assert sum(booked(status).values()) == wait_s(status) == 100 + WRITTEN_S + 600 + 300 + 50
    assert booked(status) == {"NamespaceQuota": 100, "FragmentedCores": WRITTEN_S + 900, "FairShare": 50}


async def test_a_job_that_is_short_of_nothing_books_no_shortage() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        status = await reaches(api, api.submit(), "Succeeded")
    assert set(booked(status)) <= {cause.value for cause in DelayCause} - {cause.value for cause in SHORTAGES}
    assert sum(booked(status).values()) <= 1


async def test_a_suspended_job_is_held_and_an_enlarged_one_keeps_what_it_has_waited() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, plans=False) as rest, operator(api):
        job = api.submit(replicas=1)
        first = await reaches(api, job, "Queued")
        refuse(api, job, DelayCause.CAPACITY)
        await asyncio.sleep(100)
        api.edit(job, suspend=True)
        await reaches(api, job, "Suspended")
        accept(api, job)
        await asyncio.sleep(1000)
        api.edit(job, suspend=False, replicas=2)
        await reaches(api, job, "Queued")
        refuse(api, job, DelayCause.FAIR_SHARE)
        await asyncio.sleep(70)
        accept(api, job)
        rest.plans = True
        rest.act()
        status = await reaches(api, job, "Running")
    found = booked(status)
    launched_s, queued_s = seconds_from_time(status["launchTime"]), seconds_from_time(first["queuedTime"])
    assert sum(found.values()) == int(launched_s) - int(queued_s)
    assert abs(found["Capacity"] - 100) <= 1
    assert abs(found["Hold"] - 1000) <= 1
    assert abs(found["FairShare"] - 70) <= 1


async def test_a_job_that_fails_waits_again_and_every_attempt_is_held_time() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: 1 if attempt == 1 else 0), operator(api):
        status = await reaches(api, api.submit(), "Succeeded")
    spent = account_from_json(status)
    assert spent is not None
    assert spent.doing is Doing.ENDED
    whole_s = int(seconds_from_time(status["completionTime"])) - int(seconds_from_time(status["queuedTime"]))
    assert spent.wait_s + spent.held_s == whole_s


async def test_causes_that_flap_are_written_once_a_while() -> None:
    api = FakeCluster()
    async with operator(api):
        job = api.submit()
        await reaches(api, job, "Queued")
        writes = len(api.history("trainingjobs"))
        for _ in range(60):
            for cause in (DelayCause.GPUS, DelayCause.CORES):
                refuse(api, job, cause)
                await asyncio.sleep(1)
        own = len(api.history("trainingjobs")) - writes - 120
    assert 1 <= own <= 120 / SETTLE_S


class Kept:
    """A store in memory."""

    def __init__(self) -> None:
        self.records: list[FinishedJob] = []

    def migrate(self) -> None:
        return

    def write(self, jobs: Sequence[FinishedJob]) -> int:
        self.records += jobs
        return len(jobs)


PHASES = st.sampled_from([Phase.QUEUED, Phase.LAUNCHED, Phase.RUNNING, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED])
OF_PHASES = {DelayCause.RESTART, DelayCause.TRIAL, DelayCause.HOLD}
CAUSES = st.sampled_from(sorted(set(DelayCause) - OF_PHASES, key=lambda cause: cause.value))
CHANGES = st.lists(st.tuples(PHASES, CAUSES, st.integers(0, 200), st.booleans()), min_size=1, max_size=30)
HOLDING = (Phase.LAUNCHED, Phase.RUNNING)


def moved_to(before: Progress, phase: Phase, now_s: float) -> Progress:
    """As the life cycle writes it: a gang that was tried has waited since before its trial. It fails if refused."""
    if before.phase is Phase.FAILED:
        before, phase = waits_anew(before), Phase.QUEUED
    after = replace(before, phase=phase, queued_s=before.queued_s or now_s)
    if phase is before.phase:
        return after
    if phase is Phase.FAILED:
        return replace(after, completion_s=now_s)
    if phase in HOLDING and before.phase not in HOLDING:
        return replace(after, launch_s=now_s)
    if phase is Phase.QUEUED:
        was_tried = before.is_tried and before.phase is not Phase.SUSPENDED
        attempt = before.attempt + (before.phase is Phase.RESTARTING)
        waiting_s = (before.waiting_s or now_s) if was_tried else now_s
        return replace(after, attempt=attempt, launch_s=0.0, waiting_s=waiting_s)
    return after


def status_with(progress: Progress, cause: DelayCause, spent: TimeSpent | None) -> Json:
    assert progress.phase is not None
    status: Json = {"phase": progress.phase.value, "attempt": progress.attempt, "pending": {"cause": cause.value}}
    if progress.trial is not None:
        status["trial"] = trial_json(progress.trial)
    return status if spent is None else status | {"delays": account_json(spent)}


def cause_in(progress: Progress) -> DelayCause | None:
    """What is booked while it is in this phase, whatever the planner says; None: that, or nothing."""
    if progress.phase in HOLDING:
        return DelayCause.TRIAL if progress.is_tried else None
    held = dict.fromkeys((Phase.SUSPENDED, Phase.FAILED), DelayCause.HOLD)
    return (held | {Phase.RESTARTING: DelayCause.RESTART}).get(progress.phase or Phase.QUEUED)


@given(st.booleans(), CHANGES, st.integers(0, 1000))
def test_leaders_that_follow_each_other_book_the_whole_time_and_each_phase_as_its_own_cause(
    has_trial: bool, changes: list[tuple[Phase, DelayCause, int, bool]], end_s: int
) -> None:
    """Each change is seen, and may be written; with `True` another process goes on from what is written."""
    ledger, now_s = TimeLedger(), 1000.0
    progress, status = Progress(trial=TrialRun(attempt=1) if has_trial else None), Json()
    expected: Counter[DelayCause | None] = Counter()
    for phase, cause, seconds, dies in [*changes, (Phase.QUEUED, DelayCause.CODA, end_s, False)]:
        after = moved_to(progress, phase, now_s)
        spent = ledger.to_write("u", progress, after, status, now_s)
        progress, status = replace(after, spent=spent), status_with(after, cause, spent)
        ledger.see("u", status, now_s)
        if dies:
            ledger = TimeLedger()
            ledger.see("u", status, now_s)
        now_s += seconds
        expected[cause_in(progress)] += seconds
    ledger.see("u", status, now_s)
    live = ledger.of("u")
    assert live is not None
    whole = counted(live, now_s)
    assert whole.wait_s + whole.held_s == int(now_s) - whole.began_s
    assert whole.began_s == 1000
    booked_s = dict(whole.waits)
    assert [booked_s.get(cause, 0) for cause in OF_PHASES] == [expected[cause] for cause in OF_PHASES]


@given(CHANGES)
def test_the_metric_counts_each_second_that_this_process_saw(
    changes: list[tuple[Phase, DelayCause, int, bool]],
) -> None:
    ledger, now_s, waited_s, before = TimeLedger(), 1000.0, 0, 0
    for phase, cause, seconds, ends in changes:
        phase = Phase.QUEUED if phase is Phase.FAILED else phase
        ledger.see("u", {"phase": phase.value, "pending": {"cause": cause.value}}, now_s)
        now_s += seconds
        waited_s += 0 if phase in (Phase.LAUNCHED, Phase.RUNNING) else seconds
        if ends:
            ledger.see("u", {"phase": "Succeeded"}, now_s)
        total = sum(ledger.booked_s(now_s).values())
        assert before <= total == waited_s
        before = total


@pytest.mark.parametrize(
    "broken",
    [
        {"doing": "Dancing", "began": time_from_seconds(1), "since": time_from_seconds(2)},
        {"doing": "Waiting"},
        {"doing": "Waiting", "began": "yesterday", "since": time_from_seconds(2)},
        {
            "doing": "Waiting",
            "began": time_from_seconds(1),
            "since": time_from_seconds(2),
            "waits": [{"cause": "Hold"}],
        },
        "a text",
    ],
)
def test_an_account_that_cannot_be_read_begins_again(broken: object) -> None:
    assert readable_account({"delays": broken}) is None
