"""Memory that grows with every part is a leak; what grows once is an allocator's."""

from __future__ import annotations

import pytest

from coda_lab.experiments.fuzz.report import PARTS, WARM_UP, Options, Outcome
from coda_lab.experiments.fuzz.sender import Sender

MIB = 1 << 20


def after(*mib: float) -> Outcome:
    """A run with so much memory after each part."""
    memory = {part: int(size * MIB) for part, size in zip((WARM_UP, *PARTS), mib, strict=False)}
    return Outcome(options=Options(count=100_000, seed=1), sender=Sender(1), memory_by_part_bytes=memory)


@pytest.mark.parametrize(
    ("outcome", "grown_mib"),
    [
        pytest.param(after(82, 88, 94, 100), 18, id="a leak of 6 MiB a part"),
        pytest.param(after(82, 105, 105, 104), 0, id="a high-water mark, once"),
        pytest.param(after(82, 81, 105, 106), 3, id="later, once"),
        pytest.param(after(82, 76, 96, 102), 18, id="a leak beneath a swing"),
        pytest.param(after(82, 80, 79, 79), -3, id="less than before"),
        pytest.param(after(82, 105), 0, id="a process that ended"),
    ],
)
def test_growth_is_what_the_middle_part_shows(outcome: Outcome, grown_mib: float) -> None:
    assert outcome.grown_bytes == grown_mib * MIB
    told = [problem for problem in outcome.problems() if "memory grew" in problem]
    assert bool(told) == (grown_mib > 16)
