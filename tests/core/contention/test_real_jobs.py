"""The eliminator on jobs as they are: pauses, drift, noise, who was there first, restarts. The long version, with
figures, is `benchmarks/eliminator_quality.py`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from coda.contention import ContentionConfig, EliminatorState, TrainingSample, Window, disturbed_at_s, observe
from coda.contention.eliminator import recalled
from coda.contention.reference import lasting
from tests.core.contention.contention_world import GB, INTEL, PEAK, Load
from tests.core.contention.real_jobs import Burst, Pauses, RealJob, RealNode, node_of

pytestmark = pytest.mark.heavy

HOUR = 3600.0
JOB = RealJob(job="a/train")
HOG = Burst(uid="hog", gb_per_s=120)
BESIDE = replace(JOB, loss=0.0, gb_per_s=1.0, noise=0.03)
STEADY = Burst(uid="steady", gb_per_s=80)


def run(*jobs: RealJob, loads: tuple[Load, ...] = (HOG,), seed: int = 1, hours: float = 1.0) -> RealNode:
    return node_of(*jobs, loads=loads, seed=seed, until_s=hours * HOUR).go(hours * HOUR)


@pytest.mark.parametrize("level", [0.0, 0.2, 0.6])
@pytest.mark.parametrize(("every_s", "for_s"), [(600, 60), (300, 10), (120, 20)])
def test_a_job_with_pauses_stays_protected(every_s: float, for_s: float, level: float) -> None:
    pauses = Pauses(every_s=every_s, for_s=for_s, level=level, first_s=every_s / 2, jitter=0.4)
    assert run(replace(JOB, pauses=pauses)).protected(HOG.from_s) >= 0.9


@pytest.mark.parametrize(
    ("job", "loads"),
    [
        pytest.param(replace(JOB, drift_per_h=-0.1), (HOG,), id="drift"),
        pytest.param(replace(JOB, noise=0.05, correlation_s=60), (HOG,), id="correlated noise"),
        pytest.param(replace(JOB, loss=0.1), (HOG,), id="a small loss"),
        pytest.param(JOB, (replace(HOG, on_s=20, every_s=30),), id="bursts"),
        pytest.param(JOB, (replace(HOG, gb_per_s=70), replace(HOG, uid="two", gb_per_s=60)), id="two aggressors"),
        pytest.param(replace(JOB, from_s=300, ramp_s=300), (HOG,), id="a ramp under contention"),
    ],
)
def test_a_job_stays_protected(job: RealJob, loads: tuple[Load, ...]) -> None:
    assert run(job, loads=loads).protected(max(30.0, job.from_s)) >= 0.9


@pytest.mark.parametrize(
    ("job", "load", "at_s"),
    [
        pytest.param(replace(JOB, from_s=300), HOG, 300, id="it was there before the job"),
        pytest.param(JOB, replace(HOG, from_s=8), 8, id="it came while the job's reference was learned"),
        pytest.param(JOB, replace(HOG, from_s=120), 120, id="it came later"),
        pytest.param(replace(JOB, cores_by_s=((0.0, 4), (31.0, 5))), HOG, 30, id="the job was resized a second later"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_an_aggressor_is_found_within_a_minute(job: RealJob, load: Load, at_s: float, seed: int) -> None:
    assert run(job, loads=(load,), seed=seed, hours=0.15).unprotected_until(at_s) <= 60


@pytest.mark.parametrize("ends_s", range(60, 70))
def test_a_job_may_end_in_any_second_of_a_probation(ends_s: int) -> None:
    ends = replace(JOB, job="b/train", until_s=float(ends_s))
    for hog in (HOG, replace(HOG, until_s=ends_s - 2.0)):
        node = node_of(ends, JOB, loads=(hog,), seed=1, until_s=120).go(120)
        assert {one.job for one in node.state.references} == {"a/train"}


def test_references_survive_a_restart_of_the_agent() -> None:
    node = run(JOB, hours=0.1)
    kept = {one.job: one for one in lasting(node.state.references)}
    sample = TrainingSample(job="a/train", sockets=frozenset({0}), cores=4, share=0.4)
    node.restart = lambda _state: recalled(EliminatorState(), (sample,), kept)
    node.restart_agent()
    restarted_s = node.now_s
    node.go(restarted_s + 60)
    assert node.unprotected_until(restarted_s) <= 15
    (reference,) = lasting(node.state.references)
    assert reference.share == pytest.approx(kept["a/train"].share, rel=0.05)


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("second", [85, 120], ids=["a busy socket", "a full one"])
@pytest.mark.parametrize("seed", range(3))
def test_of_two_sockets_only_the_one_that_costs_the_job_something_is_throttled(
    guilty: int, second: int, seed: int
) -> None:
    job = replace(JOB, socket=guilty, also_on=frozenset({1 - guilty}))
    loads = (replace(HOG, socket=guilty), replace(HOG, uid="innocent", socket=1 - guilty, gb_per_s=second))
    node = run(job, loads=loads, seed=seed, hours=2)
    assert node.protected(HOG.from_s) >= 0.9
    assert node.throttled(sockets=frozenset({1 - guilty})) <= 0.005


TWO_HOGS = (HOG, replace(HOG, uid="two", socket=1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("from_s", [0.0, 300.0], ids=["the job first", "the loads first"])
def test_a_job_that_waits_for_its_slowest_socket_is_helped_by_trying_both_together(from_s: float, seed: int) -> None:
    """One socket alone shows no gain. The next trial, 10 min later, is of both."""
    job = replace(JOB, also_on=frozenset({1}), waits_for_all=True, from_s=from_s)
    node = run(job, loads=TWO_HOGS, seed=seed, hours=2)
    begins_s = max(from_s, HOG.from_s)
    assert node.unprotected_until(begins_s) <= 720
    assert node.protected(begins_s + 720) >= 0.9


def test_on_two_full_sockets_nobody_is_throttled_for_long_for_jobs_that_lose_nothing() -> None:
    jobs = [replace(BESIDE, job=f"a/{number}", from_s=60.0, also_on=frozenset({1})) for number in range(2)]
    node = run(*jobs, loads=TWO_HOGS, hours=4)
    for socket in (0, 1):
        times = node.throttle_times(frozenset({socket}))
        assert all(end_s - begin_s <= 15 for begin_s, end_s in times)
        assert all(after[0] - before[1] >= 590 for before, after in pairwise(times))


@pytest.mark.parametrize("first", [True, False], ids=["the load first", "the jobs first"])
@pytest.mark.parametrize(("count", "noise"), [(1, 0.03), (8, 0.03), (8, 0.05)])
def test_hardly_anybody_is_throttled_for_jobs_that_lose_nothing(count: int, noise: float, first: bool) -> None:
    jobs = [replace(BESIDE, job=f"a/{number}", noise=noise, from_s=60.0 * first) for number in range(count)]
    node = run(*jobs, loads=(STEADY,))
    assert node.throttled() <= 0.01


def test_trials_without_a_gain_last_15_s_and_come_ever_less_often() -> None:
    """Nobody knows how busy these jobs would be alone, so it is tried again: after 10 min, doubling to an hour."""
    node = run(*(replace(BESIDE, job=f"a/{number}", from_s=60.0) for number in range(2)), loads=(HOG,), hours=4)
    times = node.throttle_times()
    assert all(end_s - begin_s <= 15 for begin_s, end_s in times)
    waits = [(after[0] - before[1]) / 60 for before, after in pairwise(times)]
    assert waits == pytest.approx([10, 20, 40, 60, 60], abs=1.0)


def test_gpus_that_are_busy_now_and_then_are_no_evidence() -> None:
    """An inference pod with 3 s of work in 10 s must not have a CPU pod throttled for most of the time."""
    busy = replace(BESIDE, pauses=Pauses(every_s=10, for_s=7))
    assert run(busy, loads=(STEADY,)).throttled() == 0


@pytest.mark.parametrize("round_s", [1.0, 5.5, 11.0])
def test_rounds_that_take_long_release_by_the_time_that_passed(round_s: float) -> None:
    node = run(replace(JOB, gb_per_s=5.0), loads=(replace(HOG, until_s=600.0),), hours=600 / HOUR)
    assert node.state.throttles
    node.round_s = round_s
    node.go(600 + 240)
    assert not node.state.throttles


def test_windows_with_contention_or_a_limit_that_moves_count_as_disturbed() -> None:
    node = run(JOB, loads=(replace(HOG, from_s=300),), hours=299 / HOUR)
    assert disturbed_at_s(node.state, {0, 1}) is None
    node.go(302)
    assert (disturbed_at_s(node.state, {0}) or 0) >= 300
    assert disturbed_at_s(node.state, {1}) is None
    node.go(1500)
    assert (disturbed_at_s(node.state, {0}) or 0) < 1400  # held, and nothing moves


@pytest.mark.parametrize(
    ("gb_per_s", "disturbs"),
    [
        pytest.param(30.0, False, id="below the trigger there is bandwidth for all"),
        pytest.param(80.0, True, id="near the peak a step leaves more or less to others"),
    ],
)
def test_a_step_of_a_neighbour_disturbs_only_near_the_peak(gb_per_s: float, disturbs: bool) -> None:
    """Else the jobs of one socket would take turns in being tuned."""
    state, jobs = (
        EliminatorState(),
        [TrainingSample(job=name, sockets=frozenset({0}), cores=8, share=0.8) for name in "ab"],
    )
    for second in range(1, 41):
        if second == 20:
            jobs[0] = replace(jobs[0], cores=9)
        window = Window(at_s=float(second), share_by_socket={0: gb_per_s * GB / PEAK}, jobs=tuple(jobs))
        state, _actions = observe(state, window, INTEL, ContentionConfig())
    assert disturbed_at_s(state, {0}) == (20.0 if disturbs else None)
