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
from coda.progress.stall import LONGEST_WAIT_S, MOST_UNCOUNTED, Reached, Stall, is_further, stall_after, stall_wait_s

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


@pytest.mark.parametrize(("ran_s", "attempts"), [(660.0, 10), (HOUR_S, 19), (12 * HOUR_S, 129)])
def test_a_job_that_reports_and_gets_no_further_ends_as_one_that_reports_nothing(ran_s: float, attempts: int) -> None:
    life = live(lambda attempt: ran_s, lambda attempt: Reached(step=5000, saved_step=4000), days=365)
    assert (life.progress.phase, life.attempts) == (Phase.FAILED, attempts)
    assert live(lambda attempt: ran_s, days=365).attempts == attempts


def test_reports_that_end_early_harm_no_job() -> None:
    """Its agent goes soon after each start, and each attempt runs for three days."""
    life = live(lambda attempt: 3 * DAY_S, lambda attempt: Reached(step=9000 if attempt == 1 else 50), days=90)
    assert (life.progress.phase, life.progress.failures) == (Phase.RESTARTING, 0)


def test_one_save_does_not_make_later_steps_worthless() -> None:
    """It saves on its own, and told so only once, when it was asked to stop."""
    life = live(
        lambda attempt: HOUR_S,
        lambda attempt: Reached(step=attempt * 1000, saved_step=500 if attempt == 1 else None),
        days=30,
    )
    assert (life.progress.phase, life.progress.failures) == (Phase.RESTARTING, 0)
    assert life.attempts > 400


@dataclass
class Cluster:
    """A job whose nodes fail by chance. It begins where it saved last, and does 1000 steps an hour after `load_h`."""

    seed: int
    mean_h: float
    save_h: float
    tells: str  # saves, steps or nothing
    load_h: float = 0.1
    gone: float = 0.0  # the part of attempts of which nothing is told

    def __post_init__(self) -> None:
        self._chance, self._saved, self._reached = random.Random(self.seed), 0, SILENT

    def ran_s(self, attempt: int) -> float:
        ran_h, is_gone = self._chance.expovariate(1 / self.mean_h), self._chance.random() < self.gone
        saves, began = int(max(0.0, ran_h - self.load_h) / self.save_h), self._saved
        self._saved += int(saves * self.save_h * 1000)
        step = began + int((ran_h - self.load_h) * 1000) if ran_h > self.load_h else None
        saved_step = self._saved if self.tells == "saves" and saves else None
        self._reached = SILENT if is_gone or self.tells == "nothing" else Reached(step=step, saved_step=saved_step)
        return max(20.0, ran_h * HOUR_S)

    def reached(self, attempt: int) -> Reached:
        return self._reached

    def life(self, *, days: float, retries: int = 3) -> Life:
        return live(self.ran_s, self.reached, days=days, retries=retries)


@pytest.mark.parametrize("tells", ["saves", "steps"])
@pytest.mark.parametrize(("mean_h", "save_h"), [(2.5, 0.75), (1.5, 0.5), (5, 1.5), (8, 3)])
@pytest.mark.parametrize("gone", [0.0, 0.2])
def test_a_job_that_gets_further_now_and_then_never_ends(tells: str, mean_h: float, save_h: float, gone: float) -> None:
    """Many attempts end before their first save; some of them count; a later save gives that back."""
    for seed in range(6):
        life = Cluster(seed=seed, mean_h=mean_h, save_h=save_h, tells=tells, gone=gone).life(days=30)
        assert life.progress.phase is Phase.RESTARTING, seed


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("tells", ["saves", "steps"])
def test_no_job_that_reports_ends_where_one_that_reports_nothing_goes_on(tells: str, retries: int) -> None:
    """The same life, told and untold, with nodes that fail now and then, and often, for a while."""
    for seed in range(20):
        chance = random.Random(seed)
        means_h = [chance.choice((0.01, 0.2, 3.0, 20.0)) for _ in range(40)]
        ran_s = [max(20.0, chance.expovariate(1 / means_h[number // 10]) * HOUR_S) for number in range(400)]
        steps = [chance.randrange(2000) for _ in ran_s]
        told = [Reached(step=step, saved_step=step // 2 if tells == "saves" and step % 3 else None) for step in steps]
        lives = [
            live(lambda attempt: ran_s[attempt], reached, days=400, retries=retries)  # noqa: B023
            for reached in (lambda attempt: told[attempt], lambda attempt: SILENT)  # noqa: B023
        ]
        assert lives[0].attempts >= lives[1].attempts


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("mean_s", [700.0, 2 * HOUR_S])
def test_a_job_that_always_begins_at_the_same_step_ends_though_it_comes_a_bit_further_by_chance(
    tells: bool, mean_s: float
) -> None:
    """Records become rare, and failures do not."""
    for seed in range(20):
        chance = random.Random(seed)
        steps = [chance.randrange(10_000, 20_000) for _ in range(2000)]
        life = live(
            lambda attempt: chance.uniform(0.5, 1.5) * mean_s,  # noqa: B023
            lambda attempt: Reached(step=steps[attempt], saved_step=9_000 if tells and attempt == 1 else None),  # noqa: B023
            days=365,
        )
        assert life.progress.phase is Phase.FAILED
        assert life.attempts < 150


def test_what_was_counted_is_given_back_when_the_job_gets_further() -> None:
    """Six failures at one step, of which three count; then a step further."""
    reached = [Reached(saved_step=5)] * 6 + [Reached(saved_step=6)]
    stuck = live(lambda attempt: 30.0, lambda attempt: reached[attempt - 1], days=1800 / DAY_S)
    assert (stuck.attempts, stuck.progress.failures, stuck.progress.disruptions) == (6, 3, 3)
    assert stuck.progress.stall is not None
    assert (stuck.progress.stall.failures, stuck.progress.stall.counted) == (6, 3)
    freed = live(lambda attempt: 30.0, lambda attempt: reached[attempt - 1], days=5350 / DAY_S)
    assert (freed.attempts, freed.progress.failures, freed.progress.disruptions) == (7, 0, 7)
    assert freed.progress.stall is not None
    assert (freed.progress.stall.failures, freed.progress.stall.counted) == (1, 0)


def test_only_what_was_counted_so_is_given_back() -> None:
    """A crash of the job's own counts for ever."""
    crash = Diagnosis(reason=Reason.CORE_DUMP, retry=Retry.ONCE, rank=1, evidence="core dumped", explicit=True)
    life = live(
        lambda attempt: 30.0,
        lambda attempt: Reached(saved_step=5 if attempt < 6 else 6),
        found=lambda attempt: crash if attempt == 2 else NETWORK,
        days=1500 / DAY_S,
    )
    assert (life.attempts, life.progress.failures, life.progress.disruptions) == (7, 1, 6)


def test_the_shortest_wait_follows_also_after_a_short_attempt_that_got_further() -> None:
    assert stall_wait_s(Stall(failures=1, row=4), 2.0) == 1.0
    assert stall_wait_s(Stall(failures=1, row=4), 20.0) == 5.0
    assert stall_wait_s(Stall(failures=2, row=4), 20.0) == 216.0


def test_waits_grow_so_that_an_outage_ends_no_job() -> None:
    """The network is away for an hour: connections fail at once."""
    life = live(lambda attempt: 30.0)
    assert life.waits_s[:4] == [1.0, 6.0, 36.0, 216.0]
    assert max(life.waits_s) <= LONGEST_WAIT_S
    assert life.lasted_s > HOUR_S


@pytest.mark.parametrize(("retries", "minutes"), [(0, 1), (1, 5), (3, 87), (5, 207)])
def test_how_long_an_outage_may_last_is_as_documented(retries: int, minutes: int) -> None:
    life = live(lambda attempt: 6.0, retries=retries)
    assert life.progress.phase is Phase.FAILED
    assert round(life.lasted_s / 60) == minutes


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
        pytest.param(Reached(step=99), Reached(step=9, saved_step=5), True, id="it told of no save, and did more"),
        pytest.param(Reached(step=8), Reached(step=9, saved_step=5), False, id="it told of no save, and did less"),
        pytest.param(Reached(step=99, saved_step=5), Reached(step=9, saved_step=5), False, id="unsaved steps are lost"),
        pytest.param(Reached(step=7, saved_step=6), Reached(step=9, saved_step=5), True, id="more is saved"),
        pytest.param(Reached(saved_step=0), Reached(step=9), True, id="the first save"),
        pytest.param(Reached(epoch=2.5), Reached(epoch=2.25), True, id="epochs alone"),
        pytest.param(Reached(epoch=9.0), Reached(epoch=2.0, step=10), False, id="epochs beside steps prove nothing"),
        pytest.param(Reached(epoch=9.0), Reached(saved_step=5), False, id="nor beside saves"),
        pytest.param(Reached(), Reached(), False, id="it never reports"),
    ],
)
def test_saves_prove_most_then_steps_then_epochs(reached: Reached, before: Reached, further: bool) -> None:
    assert is_further(reached, before) is further


def test_the_furthest_of_all_attempts_is_kept() -> None:
    before = Stall(failures=1, row=1, reached=Reached(step=9, saved_step=5, epoch=1.0))
    after = stall_after(before, Reached(step=7, epoch=0.5), 60.0, adds=True)
    assert after == Stall(failures=2, row=2, ran_s=60, reached=before.reached)


def test_an_edit_or_a_suspension_begins_anew() -> None:
    stalled = Progress(
        phase=Phase.QUEUED, generation=1, failures=3, disruptions=7, stall=Stall(failures=9, counted=2, row=6)
    )
    now = Situation(terms=Terms(replicas=2), generation=2, progress=stalled)
    for begun in (suspend(now).progress, accept_again(now, 10.0).progress):
        assert (begun.stall, begun.failures, begun.disruptions) == (None, 1, 9)


STEPS = st.none() | st.integers(0, 5)
REACHED = st.builds(Reached, step=STEPS, saved_step=STEPS, epoch=st.none() | st.floats(0, 5))


@given(st.lists(st.tuples(REACHED, st.floats(0, 1e6), st.booleans()), max_size=30))
def test_whatever_is_reported_the_furthest_never_goes_back(attempts: list[tuple[Reached, float, bool]]) -> None:
    stall = None
    for reached, ran_s, adds in attempts:
        before, stall = stall, stall_after(stall, reached, ran_s, adds=adds)
        if before is not None and stall is not None:
            assert not is_further(stall.reached, before.reached) or is_further(reached, before.reached)
            assert (stall.reached.step or -1) >= (before.reached.step or -1)
            assert stall.failures <= before.failures + 1
            assert stall.ran_s >= before.ran_s
        assert stall is None or 0 <= stall.row <= 6
