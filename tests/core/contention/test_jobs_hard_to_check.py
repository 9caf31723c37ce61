"""A throttle that helped, and then its job goes idle, is not measured any more, or works in short pieces.

Its check needs a job whose fall would show. Without one the CPU pods must get free all the same, and a job that still
suffers must not lose its protection again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from coda.contention import ThrottleReason, TrainingSample
from tests.core.contention.real_jobs import Burst, Pauses, RealJob, RealNode

pytestmark = pytest.mark.heavy

HOUR = 3600.0
CHANGES_S = 600.0
HOG = Burst(uid="hog", gb_per_s=120)
HELPED = RealJob(job="a/helped", gb_per_s=2)
OTHER = RealJob(job="b/other", loss=0.0, gb_per_s=2)


@dataclass(slots=True)
class ChangingNode(RealNode):
    """`later`: what the helped job is seen to do from `CHANGES_S` on. It loses nothing to contention from then on."""

    later: Callable[[float], float | None] = field(default=lambda _now_s: None)

    def _sample(self, job: RealJob, level: float, pressure: float) -> TrainingSample:
        if job.job != HELPED.job or self.now_s <= CHANGES_S:
            return RealNode._sample(self, job, level, pressure)
        sample = RealNode._sample(self, replace(job, loss=0.0), level, pressure)
        return replace(sample, share=self.later(self.now_s))


def in_pieces(on_s: float, every_s: float) -> Callable[[float], float]:
    return lambda now_s: 0.9 if now_s % every_s < on_s else 0.0


@pytest.mark.parametrize("other", [(), (OTHER,)], ids=["alone", "beside a measured job"])
@pytest.mark.parametrize(
    "later",
    [
        pytest.param(lambda _now_s: 0.0, id="idle"),
        pytest.param(lambda _now_s: None, id="not measured"),
        pytest.param(in_pieces(6, 9), id="6 s of work in 9 s"),
        pytest.param(in_pieces(3, 7), id="3 s of work in 7 s"),
        pytest.param(in_pieces(5, 200), id="5 s of work in 200 s"),
        pytest.param(in_pieces(8, 400), id="8 s of work in 400 s"),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_a_pod_is_not_throttled_for_ever_for_a_job_that_cannot_be_checked(
    later: Callable[[float], float | None], other: tuple[RealJob, ...], seed: int
) -> None:
    node = ChangingNode(loads=(HOG,), victims=(HELPED, *other), seed=seed, later=later).begin(HOUR).go(CHANGES_S)
    assert node.throttled(60) >= 0.9
    node.go(HOUR)
    assert node.throttled(CHANGES_S + 1500) <= 0.01


@pytest.mark.parametrize(("on_s", "every_s"), [(6, 9), (4, 7), (20, 32), (8, 30), (45, 60), (9, 100), (30, 300)])
@pytest.mark.parametrize("seed", range(2))
def test_a_job_that_works_in_pieces_and_still_suffers_keeps_its_protection(
    on_s: float, every_s: float, seed: int
) -> None:
    pauses = Pauses(every_s=every_s, for_s=every_s - on_s, first_s=60 + on_s, jitter=0.2 * on_s / every_s)
    node = RealNode(loads=(HOG,), victims=(replace(HELPED, pauses=pauses),), seed=seed).begin(2 * HOUR).go(2 * HOUR)
    assert node.protected(HOG.from_s, HELPED.job) >= 0.9
    assert len(node.throttle_times()) <= 12


@pytest.mark.parametrize("idle_s", [300.0, 900.0, 3000.0])
def test_a_job_that_comes_back_from_a_long_pause_is_helped_again(idle_s: float) -> None:
    pauses = Pauses(every_s=idle_s + 900, for_s=idle_s, first_s=700)
    node = RealNode(loads=(HOG,), victims=(replace(HELPED, pauses=pauses),), seed=1).begin(3 * HOUR).go(3 * HOUR)
    assert node.protected(HOG.from_s, HELPED.job) >= 0.9


def test_a_clock_that_jumps_makes_no_check_overdue() -> None:
    """The node slept for three hours: nobody could have judged the throttle meanwhile."""
    node = RealNode(loads=(HOG,), victims=(HELPED,), seed=1).begin(9 * HOUR).go(CHANGES_S)
    node.now_s += 3 * HOUR
    node.go(node.now_s + 60)
    lifted = [action for at_s, action in node.actions if at_s > CHANGES_S and action.ends]
    assert ThrottleReason.NO_VICTIM not in {action.reason for action in lifted}


def test_a_clock_that_jumps_is_no_silence_of_a_job() -> None:
    """The node slept for three hours, and the job is in a pause just then: it may need its protection a second later.

    From then on its silence counts."""
    node = ChangingNode(loads=(HOG,), victims=(HELPED,), seed=1, later=lambda _now_s: 0.0).begin(9 * HOUR).go(CHANGES_S)
    assert node.state.throttles
    node.now_s += 3 * HOUR
    began_s = node.now_s
    node.go(began_s + 500)
    assert node.state.throttles
    node.go(began_s + 700)
    assert not node.state.throttles
