"""For how long a job has a claim on what others left for it."""

from __future__ import annotations

from coda.model import JobId
from coda.tenants.memory import CLAIM_S, FairShareMemory

JOB = JobId("team/a")


def test_a_claim_ends_with_the_wait_or_after_a_while() -> None:
    memory = FairShareMemory()
    memory.note(JOB, (), 1000.0)
    assert memory.claims([JOB], 999.0 + CLAIM_S) == [JOB]
    assert memory.claims([JOB], 1000.0 + CLAIM_S) == []
    memory.note(JOB, (), 5000.0)
    assert memory.claims([], 5001.0) == memory.claims([JOB], 5001.0) == []


def test_a_clock_that_steps_back_makes_no_claim_last_longer() -> None:
    memory = FairShareMemory()
    memory.note(JOB, (), 10_000.0)
    assert memory.claims([JOB], 1000.0) == [JOB]
    assert memory.claims([JOB], 1000.0 + CLAIM_S) == []


def test_a_claim_lasts_longer_by_the_notice_of_those_who_stop_and_each_stop_begins_another() -> None:
    memory = FairShareMemory()
    memory.note(JOB, (), 1000.0, notice_s=120.0)
    assert memory.claims([JOB], 1119.0 + CLAIM_S) == [JOB]
    memory.note(JOB, (), 1100.0 + CLAIM_S)
    assert memory.claims([JOB], 1099.0 + 2 * CLAIM_S) == [JOB]
    assert memory.claims([JOB], 1100.0 + 2 * CLAIM_S) == []
