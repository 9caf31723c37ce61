"""A job whose failures look like the infrastructure's is tried for weeks if it gets further, else for hours."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.diagnosis import Diagnosis, Reason, Retry
from coda.lifecycle.failures import RANK_FAILED, Failure
from coda.lifecycle.retry import roll_back
from coda.lifecycle.state import LifecycleConfig, Progress, Situation, Terms
from coda.lifecycle.transitions import accept_again, suspend
from coda.model import Phase
from coda.progress.stall import LONGEST_WAIT_S, MOST_UNCOUNTED, Reached, Stall, is_further, stall_after

CONFIG = LifecycleConfig()
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
OWN = Failure(own=True, reason=RANK_FAILED, message="rank 1 on n1 failed with exit code 1")
LOST = Failure(own=False, reason="NodeLost", message="rank 1: the node is not Ready")
NETWORK = Diagnosis(reason=Reason.MPI, retry=Retry.OTHER_NODE, rank=1, evidence="peer lost", explicit=True)
SIGTERM = Diagnosis(reason=Reason.PREEMPTED, retry=Retry.YES, rank=1, evidence="exit code 143")
SILENT = Reached()


@dataclass
class Life:
    """What became of a job. `waits_s`: after each attempt that was not the last."""

    progress: Progress
    attempts: int
    lasted_s: float
    waits_s: list[float]


def live(
    ran_s: Callable[[int], float],
    reached: Callable[[int], Reached] = lambda attempt: SILENT,
    *,
    found: Callable[[int], Diagnosis | None] = lambda attempt: NETWORK,
    days: float = 7,
    retries: int = 3,
) -> Life:
    """Let one attempt after another fail, each by `found` (None: its node is lost)."""
    now_s, waits_s = 1000.0, []
    progress = Progress(phase=Phase.RUNNING, attempt=1, launch_s=now_s)
    while now_s < 1000.0 + days * DAY_S:
        number, served_s = progress.attempt, progress.served_s
        progress = replace(progress, phase=Phase.RUNNING, launch_s=now_s)
        now_s += ran_s(number)
        why = found(number)
        terms = Terms(replicas=2, retries=retries)
        now = Situation(terms=terms, generation=1, progress=progress, diagnosis=why, reached=reached(number))
        progress = roll_back(now, LOST if why is None else OWN, now_s, CONFIG).progress
        if progress.phase is Phase.FAILED:
            break
        waits_s.append(progress.not_before_s - now_s)
        now_s = progress.not_before_s
        progress = replace(progress, attempt=number + 1, served_s=served_s + ran_s(number))
    return Life(
        progress=progress,
        attempts=len(waits_s) + (progress.phase is Phase.FAILED),
        lasted_s=now_s - 1000.0,
        waits_s=waits_s,
    )


@pytest.mark.parametrize(
    ("ran_s", "most_attempts"),
    [
        pytest.param(30, 8, id="at once"),
        pytest.param(599, 11, id="before ten minutes"),
        pytest.param(660, 11, id="NCCL's default timeout"),
        pytest.param(1200, 13, id="after twenty minutes"),
        pytest.param(HOUR_S, 21, id="after an hour"),
        pytest.param(3 * HOUR_S, 42, id="after three hours"),
    ],
)
@pytest.mark.parametrize("found", [NETWORK, SIGTERM])
def test_a_silent_job_that_always_fails_so_ends(ran_s: float, most_attempts: int, found: Diagnosis) -> None:
    life = live(lambda attempt: ran_s, found=lambda attempt: found, days=30)
    assert life.progress.phase is Phase.FAILED
    assert life.attempts <= most_attempts
    assert life.progress.message.endswith("all 4 allowed attempts have failed")


def test_two_reasons_in_turn_are_one_row() -> None:
    life = live(lambda attempt: 30.0, found=lambda attempt: (NETWORK, SIGTERM)[attempt % 2])
    assert (life.progress.phase, life.attempts) == (Phase.FAILED, 7)


def test_without_retries_the_fourth_failure_ends_the_job() -> None:
    assert live(lambda attempt: 30.0, retries=0).attempts == MOST_UNCOUNTED + 1


def test_what_is_allowed_of_a_silent_job_has_no_cliff() -> None:
    """An attempt that runs a bit longer is never forgiven much more."""
    attempts = [live(lambda attempt, ran_s=minutes * 60.0: ran_s, days=365).attempts for minutes in range(1, 300, 7)]  # type: ignore[misc]
    assert all(0 <= after - before <= 3 for before, after in itertools.pairwise(attempts))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("reports", [False, True])
def test_a_job_of_a_month_whose_nodes_fail_twice_a_day_goes_on(seed: int, reports: bool) -> None:
    """64 nodes; it saves each half an hour. Whether it says so or not."""
    chance = random.Random(seed)
    ran_s = [chance.expovariate(1 / (12 * HOUR_S)) for _ in range(400)]
    saved = [0]
    for each_s in ran_s:
        saved.append(saved[-1] + int(each_s // 1800))
    life = live(
        lambda attempt: ran_s[attempt],
        (lambda attempt: Reached(step=saved[attempt + 1] + 1, saved_step=saved[attempt + 1]))
        if reports
        else lambda attempt: SILENT,
        days=30,
    )
    assert life.progress.phase is Phase.RESTARTING
    assert life.progress.failures == 0
    assert sum(life.waits_s) < 0.01 * life.lasted_s


def test_a_job_that_gets_further_is_tried_hundreds_of_times_and_waits_in_between() -> None:
    life = live(lambda attempt: 660.0, lambda attempt: Reached(saved_step=attempt))
    assert (life.progress.phase, life.progress.failures) == (Phase.RESTARTING, 0)
    assert life.attempts > 400
    assert life.waits_s[0] == 1.0
    assert set(life.waits_s[20:]) == {660.0 / 4}
    assert life.progress.message.endswith("; it fails so again and again; the next is tried 165 s later")


@pytest.mark.parametrize("ran_s", [660.0, 12 * HOUR_S, 3 * DAY_S])
def test_a_job_that_reports_and_gets_no_further_ends_however_long_it_runs(ran_s: float) -> None:
    life = live(lambda attempt: ran_s, lambda attempt: Reached(step=5000, saved_step=4000), days=365)
    assert (life.progress.phase, life.attempts) == (Phase.FAILED, 7)


def test_waits_grow_so_that_an_outage_ends_no_job() -> None:
    """The network is away for an hour: connections fail at once."""
    life = live(lambda attempt: 30.0)
    assert life.waits_s[:4] == [1.0, 6.0, 36.0, 216.0]
    assert max(life.waits_s) <= LONGEST_WAIT_S
    assert life.lasted_s > HOUR_S


def test_the_message_says_when_and_why_it_is_tried_again() -> None:
    life = live(lambda attempt: 30.0, days=200 / DAY_S)
    assert life.progress.failure is not None
    assert life.progress.failure.decision == (
        "it is tried again while spec.retries allows: it counts, after 4 such failures without getting further"
    )
    assert life.progress.message.endswith("; 4 attempts without getting further; the next is tried 216 s later")


def test_what_was_done_before_a_node_was_lost_counts_too() -> None:
    """Three failures, then an attempt that gets further and loses a node, then three more."""
    found = [NETWORK, NETWORK, NETWORK, None, NETWORK, NETWORK, NETWORK]
    life = live(
        lambda attempt: 60.0,
        lambda attempt: Reached(step=10 if attempt < 4 else 20),
        found=lambda attempt: found[attempt - 1],
        days=1750 / DAY_S,
    )
    assert (life.attempts, life.progress.failures) == (7, 0)


@pytest.mark.parametrize(
    ("reached", "before", "further"),
    [
        pytest.param(Reached(step=9), Reached(), True, id="it reports for the first time"),
        pytest.param(Reached(step=9), Reached(step=9), False, id="the same step"),
        pytest.param(Reached(), Reached(step=9), False, id="it failed before its first report"),
        pytest.param(Reached(step=99), Reached(step=9, saved_step=5), False, id="a step that is not saved is lost"),
        pytest.param(Reached(step=7, saved_step=6), Reached(step=9, saved_step=5), True, id="more is saved"),
        pytest.param(Reached(saved_step=0), Reached(step=9), True, id="the first save"),
        pytest.param(Reached(epoch=2.5), Reached(epoch=2.25), True, id="epochs alone"),
        pytest.param(Reached(epoch=9.0), Reached(epoch=2.0, step=10), False, id="epochs beside steps prove nothing"),
        pytest.param(Reached(), Reached(), False, id="it never reports"),
    ],
)
def test_saves_prove_most_then_steps_then_epochs(reached: Reached, before: Reached, further: bool) -> None:
    assert is_further(reached, before) is further


def test_the_furthest_of_all_attempts_is_kept() -> None:
    before = Stall(failures=1, row=1, reached=Reached(step=9, saved_step=5, epoch=1.0))
    after = stall_after(before, Reached(step=7, epoch=0.5), 60.0, 0.0, adds=True)
    assert after == Stall(failures=2, row=2, reached=before.reached)


def test_an_edit_or_a_suspension_begins_anew() -> None:
    stalled = Progress(phase=Phase.QUEUED, generation=1, stall=Stall(failures=9, row=6))
    now = Situation(terms=Terms(replicas=2), generation=2, progress=stalled)
    assert suspend(now).progress.stall is None
    assert accept_again(now, 10.0).progress.stall is None


STEPS = st.none() | st.integers(0, 5)
REACHED = st.builds(Reached, step=STEPS, saved_step=STEPS, epoch=st.none() | st.floats(0, 5))


@given(st.lists(st.tuples(REACHED, st.floats(0, 1e6), st.booleans()), max_size=30))
def test_whatever_is_reported_the_furthest_never_goes_back(attempts: list[tuple[Reached, float, bool]]) -> None:
    stall, served_s = None, 0.0
    for reached, ran_s, adds in attempts:
        before, stall = stall, stall_after(stall, reached, ran_s, served_s, adds=adds)
        served_s += ran_s
        if before is not None and stall is not None:
            assert not is_further(before.reached, stall.reached)
            assert stall.failures <= before.failures + 1
        assert stall is None or (stall.ran_s >= 0 and 0 <= stall.row <= 6)
