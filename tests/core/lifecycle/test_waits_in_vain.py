"""An edit takes off the time in vain: exactly this, and never twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.lifecycle import Progress
from coda.lifecycle.transitions import after_hopeless_wait
from coda.model.job import Phase

NOW_S = 1000.0


def waiting(queued_s: float, waiting_s: float, *, returned: bool = False) -> Progress:
    return Progress(phase=Phase.QUEUED, generation=1, queued_s=queued_s, waiting_s=waiting_s, returned=returned)


def accepted(before: Progress, since_s: float | None, now_s: float = NOW_S) -> Progress:
    """The progress once an edit is accepted of a job that waits in vain since then."""
    return after_hopeless_wait(before, replace(before, generation=(before.generation or 0) + 1), since_s, now_s)


@pytest.mark.parametrize(
    ("times_s", "since_s", "expected_s"),
    [
        pytest.param((100.0, 100.0), None, (100.0, 100.0), id="never in vain"),
        pytest.param((100.0, 100.0), 940.0, (160.0, 160.0), id="of late"),
        pytest.param((100.0, 100.0), 100.0, (1000.0, 1000.0), id="all the time: a placeholder gains nothing"),
        pytest.param((100.0, 700.0), 940.0, (160.0, 760.0), id="an attempt ended meanwhile"),
        pytest.param((100.0, 700.0), 50.0, (400.0, 1000.0), id="said before it began to wait"),
        pytest.param((100.0, 100.0), 0.0, (1000.0, 1000.0), id="nobody knows since when"),
        pytest.param((100.0, 0.0), 940.0, (160.0, 160.0), id="of an older version"),
        pytest.param((100.0, 100.0), 1005.0, (100.0, 100.0), id="by a clock that is ahead"),
    ],
)
def test_the_clocks_move_by_the_time_in_vain(
    times_s: tuple[float, float], since_s: float | None, expected_s: tuple[float, float]
) -> None:
    after = accepted(waiting(*times_s), since_s)
    assert (after.queued_s, after.waiting_s or after.queued_s) == expected_s


def test_who_waited_at_the_head_in_vain_does_so_no_more() -> None:
    assert accepted(waiting(100.0, 100.0, returned=True), None).returned
    assert not accepted(waiting(100.0, 100.0, returned=True), 940.0).returned


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6))
def test_of_many_edits_each_takes_off_its_own_time(spans: Sequence[tuple[int, int]]) -> None:
    """Each edit comes after some time in which the job could have started, and then some in vain."""
    job, now_s = waiting(100.0, 100.0), 100.0
    for real_s, vain_s in spans:
        now_s += real_s + vain_s
        job = accepted(job, now_s - vain_s, now_s)
    assert now_s - job.waiting_s == now_s - job.queued_s == sum([real_s for real_s, _ in spans])
