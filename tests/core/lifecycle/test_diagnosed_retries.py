"""What the logs of a failed attempt decide: whether, where and how often it is tried again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.allocator.memory_growth import KilledRank, RankMemory
from coda.correlation import Alike
from coda.diagnosis import Diagnosis, Reason, Retry
from coda.lifecycle.evidence import OOM_KILLED, killed_for_memory, logs_needed
from coda.lifecycle.failures import RANK_FAILED, Failure
from coda.lifecycle.retry import roll_back
from coda.lifecycle.state import (
    FailureRecord,
    LifecycleConfig,
    PodState,
    Progress,
    RankPod,
    Situation,
    Step,
    Terms,
)
from coda.model import Phase
from coda.progress.stall import MOST_UNCOUNTED, Stall

CONFIG = LifecycleConfig()
OWN = Failure(own=True, reason=RANK_FAILED, message="rank 1 on n1 failed with exit code 1")


def situation(found: Diagnosis | None, *, failures: int = 0, before: FailureRecord | None = None) -> Situation:
    pods = tuple(
        RankPod(name=f"job-2-{rank}", uid=f"u{rank}", attempt=2, rank=rank, node=f"n{rank}", state=state, ended=True)
        for rank, state in enumerate((PodState.STARTED, PodState.FAILED))
    )
    progress = Progress(phase=Phase.RUNNING, attempt=2, failures=failures, launch_s=10.0, failure=before)
    return Situation(terms=Terms(replicas=2), generation=1, progress=progress, pods=pods, diagnosis=found)


def diagnosis(reason: Reason, retry: Retry) -> Diagnosis:
    return Diagnosis(reason=reason, retry=retry, rank=1, evidence="E: it broke", advice="mend it", explicit=True)


def after(found: Diagnosis, *, failures: int = 0, before: FailureRecord | None = None) -> Step:
    return roll_back(situation(found, failures=failures, before=before), OWN, 100.0, CONFIG)


def record(reason: Reason, repeats: int = 1) -> FailureRecord:
    return FailureRecord(attempt=1, reason=reason.value, repeats=repeats)


def test_what_fails_the_same_way_again_stops_at_once() -> None:
    progress = after(diagnosis(Reason.SYNTAX, Retry.NO)).progress
    assert (progress.phase, progress.failures, progress.reason) == (Phase.FAILED, 1, RANK_FAILED)
    said = "rank 1 on n1 failed with exit code 1: Syntax error: E: it broke; it is not tried again: mend it"
    assert progress.message == f"{said}; then delete it and submit it again"


def test_a_consequence_alone_does_not_stop_a_job_at_once() -> None:
    implied = replace(diagnosis(Reason.DIVERGED, Retry.NO), explicit=False)
    assert after(implied).progress.phase is Phase.RESTARTING
    assert after(implied, failures=1, before=record(Reason.DIVERGED)).progress.phase is Phase.FAILED


def test_infrastructure_is_not_counted_and_its_node_is_avoided() -> None:
    progress = after(diagnosis(Reason.CUDA, Retry.OTHER_NODE)).progress
    assert (progress.phase, progress.failures, progress.disruptions) == (Phase.RESTARTING, 0, 1)
    assert list(progress.avoid) == ["n1"]
    assert "without n1, and not counted" in progress.message


def test_infrastructure_that_fails_so_everywhere_counts_in_the_end() -> None:
    """A rule may be wrong: no job is tried for ever."""
    now = situation(diagnosis(Reason.CUDA, Retry.OTHER_NODE), before=record(Reason.CUDA, MOST_UNCOUNTED))
    now = replace(now, progress=replace(now.progress, stall=Stall(failures=MOST_UNCOUNTED, row=MOST_UNCOUNTED)))
    progress = roll_back(now, OWN, 100.0, CONFIG).progress
    assert (progress.failures, progress.disruptions, list(progress.avoid)) == (1, 0, ["n1"])


def test_a_preempted_job_is_queued_again_and_not_counted() -> None:
    progress = after(diagnosis(Reason.PREEMPTED, Retry.YES)).progress
    assert (progress.phase, progress.failures, progress.disruptions, progress.avoid) == (Phase.RESTARTING, 0, 1, {})


@pytest.mark.parametrize(
    ("before", "phase"),
    [
        pytest.param(None, Phase.RESTARTING, id="the first time it is tried again"),
        pytest.param(record(Reason.CORE_DUMP), Phase.FAILED, id="the second time it stops"),
        pytest.param(record(Reason.MPI), Phase.RESTARTING, id="after another reason it is the first time"),
    ],
)
def test_what_may_be_chance_is_tried_once_more(before: FailureRecord | None, phase: Phase) -> None:
    assert after(diagnosis(Reason.CORE_DUMP, Retry.ONCE), failures=1, before=before).progress.phase is phase


@pytest.mark.parametrize(
    ("found", "before", "phase", "repeats"),
    [
        pytest.param(Retry.ONCE, Retry.OTHER_NODE, Phase.RESTARTING, 1, id="what was a node's fault begins no row"),
        pytest.param(Retry.ONCE, Retry.ONCE, Phase.FAILED, 2, id="the second time"),
        pytest.param(Retry.OTHER_NODE, Retry.OTHER_NODE, Phase.RESTARTING, 2, id="a node's fault again is counted"),
        pytest.param(Retry.YES, Retry.YES, Phase.RESTARTING, 2, id="what may pass is counted, too"),
    ],
)
def test_a_row_is_of_one_class(found: Retry, before: Retry, phase: Phase, repeats: int) -> None:
    known = replace(record(Reason.CUDA), retry=before.value)
    progress = after(diagnosis(Reason.CUDA, found), failures=1, before=known).progress
    assert progress.failure is not None
    assert (progress.phase, progress.failure.repeats) == (phase, repeats)


@pytest.mark.parametrize(
    ("failures", "phase", "decision"),
    [
        (2, Phase.RESTARTING, "it is tried again while spec.retries allows"),
        (3, Phase.FAILED, "it is not tried again: all 4 allowed attempts have failed"),
    ],
)
def test_what_may_pass_is_tried_as_often_as_the_job_allows(failures: int, phase: Phase, decision: str) -> None:
    progress = after(diagnosis(Reason.MPI, Retry.YES), failures=failures).progress
    assert progress.phase is phase
    assert progress.failure is not None
    assert progress.failure.decision == decision
    assert progress.message.endswith(decision)


@pytest.mark.parametrize("log", [None, Diagnosis(reason=Reason.NO_SIGNATURE, retry=Retry.YES)])
def test_the_last_of_all_attempts_says_so_whatever_its_log_shows(log: Diagnosis | None) -> None:
    progress = roll_back(situation(log, failures=3), OWN, 100.0, CONFIG).progress
    assert progress.phase is Phase.FAILED
    assert progress.message.endswith("; all 4 allowed attempts have failed")


def in_time(
    found: Diagnosis, before: FailureRecord, *, ran_s: float = 60.0, attempt: int = 2, stall: Stall | None = None
) -> Progress:
    """What follows if an attempt ends so after `ran_s`."""
    now = situation(found, before=before)
    pods = tuple(replace(pod, attempt=attempt, name=f"job-{attempt}-{pod.rank}") for pod in now.pods)
    now = replace(now, progress=replace(now.progress, attempt=attempt, stall=stall), pods=pods)
    return roll_back(now, OWN, now.progress.launch_s + ran_s, CONFIG).progress


LONG_S = CONFIG.calm_s
ECC = diagnosis(Reason.ECC, Retry.OTHER_NODE)
CRASH = diagnosis(Reason.CORE_DUMP, Retry.ONCE)


@pytest.mark.parametrize(
    ("ran_s", "attempt", "repeats", "failures"),
    [
        pytest.param(LONG_S - 1, 2, MOST_UNCOUNTED + 1, 1, id="soon again"),
        pytest.param(LONG_S, 2, 1, 1, id="after ten minutes"),
        pytest.param(14 * 86_400.0, 2, 1, 0, id="after weeks"),
        pytest.param(LONG_S - 1, 3, 1, 1, id="the attempt in between ended otherwise"),
    ],
)
def test_broken_hardware_weeks_apart_is_not_in_a_row(ran_s: float, attempt: int, repeats: int, failures: int) -> None:
    stall = Stall(failures=MOST_UNCOUNTED + 1, row=MOST_UNCOUNTED)
    progress = in_time(ECC, record(Reason.ECC, MOST_UNCOUNTED), ran_s=ran_s, attempt=attempt, stall=stall)
    assert progress.failure is not None
    assert progress.failure.repeats == repeats
    assert (progress.failures, progress.phase) == (failures, Phase.RESTARTING)


@pytest.mark.parametrize(
    ("found", "ran_s", "attempt", "phase"),
    [
        pytest.param(CRASH, LONG_S - 1, 2, Phase.FAILED, id="a crash soon after a crash"),
        pytest.param(CRASH, LONG_S, 2, Phase.RESTARTING, id="a crash after a long run"),
        pytest.param(CRASH, LONG_S - 1, 3, Phase.RESTARTING, id="an attempt between two crashes ended otherwise"),
        pytest.param(
            replace(diagnosis(Reason.CORE_DUMP, Retry.NO), explicit=False),
            LONG_S,
            3,
            Phase.FAILED,
            id="what is always so is so after a long run, too",
        ),
    ],
)
def test_what_may_be_chance_is_the_first_time_again_after_a_long_run(
    found: Diagnosis, ran_s: float, attempt: int, phase: Phase
) -> None:
    assert in_time(found, record(Reason.CORE_DUMP), ran_s=ran_s, attempt=attempt).phase is phase


def test_the_record_says_what_was_found_and_what_followed() -> None:
    failure = after(diagnosis(Reason.ECC, Retry.OTHER_NODE)).progress.failure
    assert failure == FailureRecord(
        attempt=2,
        reason="GPU ECC error",
        category="AE",
        explicit=True,
        rank=1,
        node="n1",
        evidence="E: it broke",
        advice="mend it",
        retry="other-node",
        decision="it is tried again without n1, and not counted as a failure",
        time_s=100.0,
    )


STOPPED_ALIKE = Alike(names=("ns/c", "ns/b", "ns/a", "ns/z"), stops_s=(90.0, 80.0, 70.0))


def test_what_stopped_three_jobs_of_the_user_stops_the_next_at_its_first_failure() -> None:
    now = replace(situation(diagnosis(Reason.CORE_DUMP, Retry.ONCE)), signature="s", alike=STOPPED_ALIKE)
    progress = roll_back(now, OWN, 100.0, CONFIG).progress
    assert (progress.phase, progress.failures) == (Phase.FAILED, 1)
    assert progress.failure is not None
    assert (progress.failure.cut_short, progress.failure.alike) == (True, 4)
    assert progress.message.endswith(
        "it is not tried again: 3 other jobs of this user stopped so within a day;"
        " 4 other jobs of this user failed so within a day: ns/c, ns/b, ns/a and 1 more"
    )


def test_jobs_that_failed_alike_are_named_where_they_decide_nothing() -> None:
    now = replace(situation(diagnosis(Reason.ECC, Retry.OTHER_NODE)), signature="s", alike=STOPPED_ALIKE)
    progress = roll_back(now, OWN, 100.0, CONFIG).progress
    assert progress.phase is Phase.RESTARTING
    assert "4 other jobs of this user failed so" in progress.message
    assert progress.failure is not None
    assert not progress.failure.cut_short


def test_a_job_that_would_have_stopped_anyway_is_not_cut_short() -> None:
    """It counts as a stop of its own: the rule did not decide it."""
    now = replace(situation(diagnosis(Reason.SYNTAX, Retry.NO)), signature="s", alike=STOPPED_ALIKE)
    progress = roll_back(now, OWN, 100.0, CONFIG).progress
    assert progress.failure is not None
    assert (progress.phase, progress.failure.cut_short) == (Phase.FAILED, False)


OOM = Diagnosis(reason=Reason.CPU_MEMORY, retry=Retry.ONCE, rank=1, evidence="OOMKilled", advice="ask for more")
KILLED = KilledRank(rank=1, main=RankMemory(limit_bytes=8 << 30), most_bytes=64 << 30, node="n1")


def test_memory_grows_where_the_job_allows_it_also_the_second_time() -> None:
    now = replace(situation(OOM, failures=1, before=record(Reason.CPU_MEMORY)), killed=KILLED)
    progress = roll_back(now, OWN, 100.0, CONFIG).progress
    assert (progress.phase, progress.failures) == (Phase.RESTARTING, 2)
    assert progress.memory == RankMemory(limit_bytes=12 << 30)
    assert progress.message.endswith("it is tried again with 12 GiB of memory per rank instead of 8 GiB")


def test_memory_that_cannot_grow_is_said_and_stops_as_before() -> None:
    small = replace(KILLED, node_bytes=8 << 30)
    now = replace(situation(OOM, failures=1, before=record(Reason.CPU_MEMORY)), killed=small)
    progress = roll_back(now, OWN, 100.0, CONFIG).progress
    assert (progress.phase, progress.memory) == (Phase.FAILED, None)
    assert "it failed so twice; its memory cannot grow beyond 8 GiB: node n1 has 8 GiB" in progress.message


def test_grown_memory_stays_when_the_job_fails_otherwise() -> None:
    now = situation(diagnosis(Reason.MPI, Retry.YES))
    now = replace(now, progress=replace(now.progress, memory=RankMemory(limit_bytes=12 << 30)))
    assert roll_back(now, OWN, 100.0, CONFIG).progress.memory == RankMemory(limit_bytes=12 << 30)


def test_the_last_attempt_grows_nothing() -> None:
    """Nobody is asked for more memory than will be used."""
    killed = replace(situation(None).pods[1], reason=OOM_KILLED)
    terms = Terms(replicas=2, retries=1, grow_memory_to_bytes=1 << 40)
    now = replace(situation(None, failures=0), terms=terms, pods=(situation(None).pods[0], killed))
    assert killed_for_memory(now) == killed
    assert killed_for_memory(replace(now, progress=replace(now.progress, failures=1))) is None
    assert killed_for_memory(replace(now, terms=replace(terms, grow_memory_to_bytes=0))) is None
    assert killed_for_memory(replace(now, pods=situation(None).pods)) is None  # exit code 137 alone proves nothing


def test_without_a_signature_all_is_as_before() -> None:
    plain = roll_back(situation(None), OWN, 100.0, CONFIG).progress
    found = Diagnosis(reason=Reason.NO_SIGNATURE, retry=Retry.YES)
    assert replace(after(found).progress, failure=None) == plain


def test_a_disruption_is_not_diagnosed() -> None:
    gone = Failure(own=False, reason="NodeLost", message="rank 1: the node is not Ready", nodes=("n1",))
    progress = roll_back(situation(diagnosis(Reason.SYNTAX, Retry.NO)), gone, 100.0, CONFIG).progress
    assert (progress.phase, progress.failure) == (Phase.RESTARTING, None)


@pytest.mark.parametrize(
    ("now", "needed"),
    [
        pytest.param(situation(None), True, id="a rank failed"),
        pytest.param(situation(Diagnosis(reason=Reason.NO_SIGNATURE)), False, id="it was read"),
        pytest.param(replace(situation(None), pods=situation(None).pods[:1]), False, id="none failed"),
        pytest.param(replace(situation(None), deleting=True), False, id="the job is deleted"),
        pytest.param(replace(situation(None), terms=Terms(replicas=2, suspend=True)), False, id="it is suspended"),
    ],
)
def test_logs_are_read_only_where_they_decide(now: Situation, needed: bool) -> None:
    assert logs_needed(now, 100.0, CONFIG) is needed


@pytest.mark.parametrize(
    ("found", "disrupted"),
    [
        (diagnosis(Reason.MPI_RUNTIME, Retry.OTHER_NODE), False),
        (replace(diagnosis(Reason.CUDA, Retry.OTHER_NODE), explicit=False), False),
        (diagnosis(Reason.ECC, Retry.OTHER_NODE), True),
        (diagnosis(Reason.TRACEBACK, Retry.ONCE), False),
    ],
    ids=["a lost peer", "a consequence", "it was ended from outside", "no node is blamed"],
)
def test_beside_a_disruption_a_log_blames_only_what_is_surely_broken(found: Diagnosis, disrupted: bool) -> None:
    now = situation(found)
    pods = tuple(replace(pod, disrupted=disrupted) for pod in now.pods)
    drained = Failure(own=False, reason="PodDeleted", message="rank 0 was deleted")
    progress = roll_back(replace(now, pods=pods), drained, 100.0, CONFIG).progress
    assert (progress.failure, dict(progress.avoid), progress.disruptions) == (None, {}, 1)
