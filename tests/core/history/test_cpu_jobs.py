"""What is kept of CPU jobs, and what a report says of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history.cpu_jobs import CpuEnding, CpuUse, cpu_lines, explained_waits, joined
from coda.history.cpu_report import CpuWaitRow, cpu_report
from tests.operator_tests.cpu_history.test_table import job

causes = st.sampled_from(["InsufficientCPU", "QuotaExceeded", "VirtualClusterFull"])


@given(st.floats(0, 1e6), st.dictionaries(causes, st.floats(0, 1e6)))
def test_causes_are_always_the_whole_wait(wait_s: float, said: dict[str, float]) -> None:
    waits = explained_waits(wait_s, said)
    assert abs(sum(seconds for _, seconds in waits) - wait_s) <= 1e-6 * (1 + wait_s)
    assert all(seconds >= 0 for _, seconds in waits)
    assert [cause for cause, _ in waits] == sorted({cause for cause, _ in waits})


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=30), st.integers(0, 30))
def test_lines_do_not_depend_on_how_the_jobs_came(kinds: list[tuple[int, int, bool]], cut: int) -> None:
    jobs = [
        job(number, owner=f"u{owner}", controller=f"c{owner}", borrows=borrows, reclaimed=times)
        for number, (owner, times, borrows) in enumerate(kinds)
    ]
    first, second = ({line.key: line for line in cpu_lines(part)} for part in (jobs[:cut], jobs[cut:]))
    both = {key: joined(first[key], second[key]) for key in first.keys() & second.keys()}
    merged = first | second | both
    assert merged == {line.key: line for line in cpu_lines(reversed(jobs))}


def test_a_report_says_what_cpu_jobs_waited_for_and_gave_back() -> None:
    jobs = [job(1), job(2, borrows=True, ending=CpuEnding.RECLAIMED), job(3, owner="bob", ending=CpuEnding.FAILED)]
    found = cpu_report(cpu_lines(jobs))
    assert found.use == CpuUse(jobs=3, core_s=360.0, borrowed_core_s=120.0, lacked_core_s=120.0)
    assert found.use.wanted_share == 0.5
    assert found.waits == (
        CpuWaitRow(cause="InsufficientCPU", wait_s=60.0, share=2 / 3),
        CpuWaitRow(cause="Queued", wait_s=30.0, share=1 / 3),
    )
    assert [(row.name, row.jobs, row.reclaimed, row.failed) for row in found.owners] == [
        ("ann", 2, 1, 0),
        ("bob", 1, 0, 1),
    ]
    assert [row.name for row in found.endings] == ["Succeeded", "Failed", "Reclaimed"]
    assert (found.owners[0].borrowed_share, found.owners[0].wait_mean_s, found.owners[0].run_mean_s) == (
        0.5,
        30.0,
        55.0,
    )


@pytest.mark.parametrize(
    ("cause", "lacks_cores"),
    [
        ("InsufficientCPU", True),
        ("HeldByPolicy", True),
        ("VirtualClusterFull", False),
        ("QuotaExceeded", False),
        ("NoMatchingNode", False),
        ("NeverFits", False),
        ("InsufficientMemory", False),
        ("InsufficientResources", False),
        ("Queued", False),
        ("NobodyKnows", False),
    ],
)
def test_only_who_waits_for_cores_wants_them(cause: str, lacks_cores: bool) -> None:
    """A user who waits at its own limit, or for memory, moves no division."""
    (line,) = cpu_lines([job(1, waits=((cause, 60.0),))])
    assert line.lacked_core_s == (120.0 if lacks_cores else 0.0)


def test_nothing_has_no_rows() -> None:
    found = cpu_report(())
    assert (found.use, found.endings, found.waits, found.owners) == (CpuUse(), (), (), ())
