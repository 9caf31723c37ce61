"""What is known after reports, when a job ends, and whether it has converged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.progress import (
    JobReport,
    Plateau,
    StopRule,
    TrainingProgress,
    convergence_text,
    pace_after,
    progress_after,
    seconds_left,
)

losses = st.floats(-1e30, 1e30)
counts = st.integers(0, 10**15)
reports = st.builds(
    JobReport,
    step=st.none() | counts,
    total_steps=st.none() | st.integers(1, 10**15),
    epoch=st.none() | st.floats(0, 1e9),
    total_epochs=st.none() | st.integers(1, 10**9),
    loss=st.none() | losses,
    loss_epoch=st.none() | st.integers(0, 10**9),
    learning_rate=st.none() | st.floats(0, 1e30),
    saved_step=st.none() | counts,
)


def after(*given_: JobReport, margin: float = 0.001) -> TrainingProgress:
    progress = None
    for at_s, report in enumerate(given_):
        progress = progress_after(progress, report, 1, float(at_s), margin)
    assert progress is not None
    return progress


def epochs(*of: float) -> list[JobReport]:
    return [JobReport(epoch=float(epoch), loss=loss) for epoch, loss in enumerate(of)]


@given(st.lists(reports, min_size=1))
def test_the_best_loss_is_the_least_that_was_seen_and_the_same_report_again_changes_nothing(
    given_: list[JobReport],
) -> None:
    progress = after(*given_)
    seen = [report.loss for report in given_ if report.loss is not None]
    assert progress.best_loss == min(seen, default=None)
    assert progress_after(progress, given_[-1], 1, 1e9) == progress
    assert progress.done_share is None or 0 <= progress.done_share <= 1
    if progress.plateau is not None:
        assert 0 <= progress.plateau.epochs <= progress.plateau.last_epoch - progress.plateau.epoch


def test_what_a_report_leaves_out_stays() -> None:
    progress = after(JobReport(step=5, loss=0.5, epoch=0.0), JobReport(step=9))
    assert (progress.step, progress.loss, progress.epoch) == (9, 0.5, 0.0)


def test_another_attempt_begins_anew() -> None:
    before = after(JobReport(step=500, loss=0.1, epoch=4.0))
    assert progress_after(before, JobReport(step=3), 2, 9.0) == TrainingProgress(attempt=2, step=3, changed_s=9.0)


def test_a_step_that_goes_back_is_believed_and_the_best_loss_stays() -> None:
    progress = after(JobReport(step=500, loss=0.1, epoch=4.0), JobReport(step=300, loss=0.2, epoch=2.0))
    assert (progress.step, progress.best_loss, progress.best_epoch) == (300, 0.1, 4)


def test_a_save_is_dated_when_it_is_first_seen() -> None:
    progress = after(JobReport(step=1), JobReport(step=2, saved_step=2), JobReport(step=3, saved_step=2))
    assert (progress.saved_step, progress.saved_s) == (2, 1.0)


def test_the_epoch_of_a_loss_is_not_the_one_that_began_since() -> None:
    late = JobReport(epoch=1.0, loss=0.5, loss_epoch=0)
    assert after(JobReport(epoch=0.0, loss=0.5, loss_epoch=0), late).plateau == Plateau(loss=0.5, epoch=0)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        pytest.param((1.0, 0.5, 0.25), Plateau(loss=0.25, epoch=2, last_epoch=2), id="it learns"),
        pytest.param((1.0, 0.9995, 1.2), Plateau(loss=1.0, epoch=0, epochs=2, last_epoch=2), id="it does not"),
        pytest.param((1.0, 0.9995, 0.998), Plateau(loss=0.998, epoch=2, last_epoch=2), id="slowly is learning too"),
        pytest.param((-1.0, -1.5), Plateau(loss=-1.5, epoch=1, last_epoch=1), id="a negative loss falls"),
        pytest.param((-1.0, -1.0005), Plateau(loss=-1.0, epoch=0, epochs=1, last_epoch=1), id="and stands"),
        pytest.param((0.0, -1e-9), Plateau(loss=-1e-9, epoch=1, last_epoch=1), id="below zero is below zero"),
    ],
)
def test_how_long_a_loss_stands(of: tuple[float, ...], expected: Plateau) -> None:
    assert after(*epochs(*of)).plateau == expected


def test_epochs_that_are_done_again_do_not_count_twice() -> None:
    progress = after(*epochs(1.0, 1.0, 1.0), *epochs(1.0, 1.0, 1.0))
    assert progress.plateau == Plateau(loss=1.0, epoch=0, epochs=2, last_epoch=2)


def test_epochs_that_nobody_saw_do_not_count() -> None:
    progress = after(JobReport(epoch=0.0, loss=1.0), JobReport(epoch=500.0, loss=1.0))
    assert convergence_text(progress, StopRule(epochs=2)) == ""


def test_a_job_converges_after_its_epochs_and_not_before_the_least() -> None:
    progress = after(*epochs(1.0, 0.4, 0.4, 0.4))
    why = "the loss has not improved by 0.1 % for 2 epochs, since 0.4 in epoch 1"
    assert convergence_text(progress, StopRule(epochs=2)) == why
    assert convergence_text(progress, StopRule(epochs=3)) == ""
    assert convergence_text(progress, StopRule(epochs=2, after_epoch=4)) == ""
    assert convergence_text(progress, None) == convergence_text(None, StopRule(epochs=2)) == ""


@given(st.lists(losses, min_size=1, max_size=30), st.integers(1, 10), st.floats(0, 1))
def test_a_job_that_converged_had_that_many_epochs_without_a_better_one(
    of: list[float], patience: int, margin: float
) -> None:
    progress = after(*epochs(*of), margin=margin)
    if convergence_text(progress, StopRule(epochs=patience, margin=margin)):
        best = progress.plateau
        assert best is not None
        assert all(loss >= best.loss - margin * abs(best.loss) for loss in of[-patience:])
        assert len(of) > patience


def test_the_end_follows_from_the_rate_of_the_changes_that_were_seen() -> None:
    pace = None
    for at_s, share in ((0.0, 0.5), (10.0, 0.5), (20.0, 0.6), (30.0, 0.6), (40.0, 0.7)):
        pace = pace_after(pace, share, at_s)
    assert seconds_left(pace, 40.0) == pytest.approx(60.0)
    assert seconds_left(pace, 50.0) == pytest.approx(50.0)
    assert seconds_left(pace, 150.0) is None  # overdue
    assert seconds_left(pace_after(pace, 0.1, 60.0), 60.0) is None  # it went back
    assert seconds_left(pace_after(None, 0.5, 0.0), 0.0) is None
    assert pace_after(pace, None, 60.0) is None


@given(st.lists(st.tuples(st.floats(0, 1e9), st.none() | st.floats(0, 1))))
def test_whatever_is_seen_the_time_left_is_none_or_within_bounds(looks: list[tuple[float, float | None]]) -> None:
    pace = None
    for at_s, share in sorted(looks, key=lambda look: look[0]):
        pace = pace_after(pace, share, at_s)
        left_s = seconds_left(pace, at_s)
        assert left_s is None or 0 <= left_s <= 10 * 365 * 86400
        assert pace is None or len(pace.changes) <= 20


def test_done_is_by_steps_and_else_by_epochs() -> None:
    progress = after(JobReport(step=5, total_steps=10, epoch=1.0, total_epochs=4))
    assert progress.done_share == 0.5
    assert replace(progress, total_steps=None).done_share == 0.25
    assert replace(progress, total_steps=None, total_epochs=None).done_share is None
    assert after(JobReport(step=11, total_steps=10)).done_share == 1.0
