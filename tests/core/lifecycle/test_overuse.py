"""A rank that is evicted because it filled its node's memory or disk: once is an accident, again is its own fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.diagnosis import Diagnosis, Reason, Retry
from coda.lifecycle import PodState, Progress, RankPod, Terms
from coda.lifecycle.evidence import logs_needed
from coda.lifecycle.failures import RANK_FAILED, Failure, attempt_failure
from coda.lifecycle.retry import roll_back
from coda.lifecycle.steps import next_step
from coda.model import Phase
from tests.core.gangs import CONFIG, NOW_S, pod, progress, running, situation

SAID = "The node was low on resource: ephemeral-storage. Container main was using 1700Gi, request is 0"


def evicted(rank: int = 0, *, overuse: str = "ephemeral-storage", **changes: object) -> RankPod:
    base = pod(rank, state=PodState.FAILED, ended=True, disrupted=True, reason="Evicted", message=SAID, overuse=overuse)
    return replace(base, **changes)  # type: ignore[arg-type]  # tests name the fields they change


def after(before: Progress, *pods: RankPod) -> Progress:
    """What follows the failure of the present attempt of a gang of two."""
    mine = [replace(one, attempt=before.attempt, name=f"j-{before.attempt}-{one.rank}") for one in pods]
    return next_step(situation(Phase.RUNNING, *mine, progress=before), NOW_S, CONFIG).progress


def next_attempt(before: Progress, *, attempts: int = 1) -> Progress:
    return replace(before, phase=Phase.RUNNING, attempt=before.attempt + attempts, launch_s=NOW_S - 21_600.0)


def test_once_it_is_the_node_s_and_from_then_on_its_own() -> None:
    counts, now = [], progress(Phase.RUNNING)
    for _ in range(9):
        now = after(now, evicted(), running(1))
        counts.append((now.failures, now.disruptions))
        if now.phase is Phase.FAILED:
            break
        now = next_attempt(now)
    assert counts == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]
    assert now.phase is Phase.FAILED
    assert now.message.endswith("all 4 allowed attempts have failed")


@pytest.mark.parametrize(
    ("overuse", "reason", "sub_reason", "wants"),
    [
        ("ephemeral-storage", "Incorrect inputs", "disk full", "ephemeral-storage"),
        ("memory", "CPU out of memory", "", "memory"),
    ],
)
def test_the_status_says_what_was_used_and_what_to_do(overuse: str, reason: str, sub_reason: str, wants: str) -> None:
    failure = after(progress(Phase.RUNNING), running(0), evicted(1, overuse=overuse)).failure
    assert failure is not None
    assert (failure.reason, failure.sub_reason, failure.rank, failure.node) == (reason, sub_reason, 1, "n1")
    assert (failure.evidence, failure.repeats, failure.time_s) == (SAID, 1, NOW_S)
    assert f"request as much {wants} as it needs" in failure.advice
    assert failure.decision == "it is tried again, and not counted as a failure: the next time in a row it counts"


def test_its_peers_that_fail_with_it_are_not_the_cause() -> None:
    lost = pod(0, state=PodState.FAILED, ended=True, exit_code=1, reason="Error")
    now = situation(Phase.RUNNING, lost, evicted(1))
    assert not logs_needed(now, NOW_S, CONFIG)
    failure = attempt_failure(now, NOW_S, CONFIG)
    assert failure is not None
    assert failure.message.startswith("rank 1 on n1 was ended from outside: Evicted")


def test_another_end_in_between_makes_it_the_first_time_again() -> None:
    first = after(progress(Phase.RUNNING), evicted(), running(1))
    second = after(next_attempt(first, attempts=2), evicted(), running(1))
    assert (second.failures, second.disruptions) == (0, 2)


def test_an_eviction_that_others_caused_never_counts() -> None:
    now = progress(Phase.RUNNING)
    for _ in range(20):
        now = next_attempt(after(now, evicted(overuse=""), running(1)))
    assert (now.failures, now.disruptions, now.failure) == (0, 20, None)


def test_no_retries_are_left_after_the_second_time() -> None:
    first = next_attempt(after(progress(Phase.RUNNING), evicted(), running(1)))
    gone = replace(evicted(), attempt=2, name="j-2-0")
    peer = replace(running(1), attempt=2, name="j-2-1")
    now = situation(Phase.RUNNING, gone, peer, progress=first, terms=Terms(replicas=2, retries=0))
    ended = next_step(now, NOW_S, CONFIG).progress
    assert (ended.phase, ended.reason) == (Phase.FAILED, "Evicted")
    assert ended.failure is not None
    assert ended.failure.decision == "it is not tried again: all 1 allowed attempts have failed"


def failed(before: Progress, reason: Reason, sub_reason: str = "") -> Progress:
    """What follows if a log of the present attempt has a cause of the class `once`, after a minute."""
    found = Diagnosis(reason=reason, sub_reason=sub_reason, retry=Retry.ONCE, rank=0, evidence="E", explicit=True)
    now = situation(Phase.RUNNING, progress=replace(before, launch_s=NOW_S - 60.0), diagnosis=found)
    return roll_back(now, Failure(own=True, reason=RANK_FAILED, message="rank 0 failed"), NOW_S, CONFIG).progress


@pytest.mark.parametrize(
    ("overuse", "reason", "sub_reason"),
    [
        pytest.param("ephemeral-storage", Reason.INPUTS, "container did not start", id="disk, then another cause"),
        pytest.param("ephemeral-storage", Reason.INPUTS, "disk full", id="disk, then a full volume"),
        pytest.param("memory", Reason.CPU_MEMORY, "", id="memory, then a MemoryError"),
    ],
)
def test_an_eviction_is_not_the_first_time_of_what_a_log_says(overuse: str, reason: Reason, sub_reason: str) -> None:
    first = next_attempt(after(progress(Phase.RUNNING), evicted(overuse=overuse), running(1)))
    second = failed(first, reason, sub_reason)
    assert (second.phase, second.failures) == (Phase.RESTARTING, 1)
    third = failed(next_attempt(second), reason, sub_reason)
    assert (third.phase, third.message[-18:]) == (Phase.FAILED, "it failed so twice")


def test_another_cause_of_the_same_reason_is_the_first_time() -> None:
    first = failed(progress(Phase.RUNNING), Reason.INPUTS, "container did not start")
    assert failed(next_attempt(first), Reason.INPUTS, "image pull").phase is Phase.RESTARTING


def test_what_a_log_says_is_not_the_first_eviction() -> None:
    first = failed(progress(Phase.RUNNING), Reason.CPU_MEMORY)
    second = after(next_attempt(first), evicted(overuse="memory"), running(1))
    assert (second.failures, second.disruptions) == (1, 1)


def test_memory_and_disk_in_turn_are_one_row() -> None:
    now = progress(Phase.RUNNING)
    for number in range(5):
        now = after(now, evicted(overuse=("memory", "ephemeral-storage")[number % 2]), running(1))
        assert now.failures == number
        now = now if now.phase is Phase.FAILED else next_attempt(now)
    assert now.phase is Phase.FAILED


def test_a_broken_gpu_beside_it_is_avoided_too_and_the_row_goes_on() -> None:
    ecc = Diagnosis(reason=Reason.ECC, retry=Retry.OTHER_NODE, explicit=True, rank=0, evidence="uncorrectable ECC")
    first = after(progress(Phase.RUNNING), running(0), evicted(1))
    lost = pod(0, attempt=2, state=PodState.FAILED, ended=True, exit_code=1, node="broken")
    again = evicted(1, attempt=2, name="j-2-1")
    now = situation(Phase.RUNNING, lost, again, progress=next_attempt(first), diagnosis=ecc)
    second = next_step(now, NOW_S, CONFIG).progress
    assert (second.failures, sorted(second.avoid)) == (1, ["broken", "n1"])
    assert second.failure is not None
    assert (second.failure.sub_reason, second.failure.repeats) == ("disk full", 2)
    assert "broken is avoided, too, for what rank 0 says: GPU ECC error: uncorrectable ECC" in second.message
