"""The first minute of `coda demo`."""

from io import StringIO
from threading import Event

import pytest
from rich.console import Console

from coda_cli.demo.bar_chart import bar_chart, hours_line
from coda_cli.demo.day import CLUSTER, POLICIES, show_day_beside
from coda_sim.workload import shape_from_text


class Screen(StringIO):
    """Tells when something was written that it waits for."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self.has_it = Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._awaited in self.getvalue():
            self.has_it.set()
        return written


def test_the_day_is_there_before_the_build_ends() -> None:
    screen = Screen("p99 wait of the unluckiest user")

    def build() -> str:
        assert screen.has_it.wait(300)
        return "built"

    assert show_day_beside(Console(file=screen, width=100), build) == "built"
    lines = screen.getvalue().splitlines()
    assert f"{shape_from_text(CLUSTER).gpus} GPUs" in lines[0]
    assert "is assumed" in lines[2]
    assert [line.split(":")[0].strip() for line in lines if line.startswith("  ") and ": " in line] == list(POLICIES)
    (waits,) = (line for line in lines if line.startswith("Under coda, mean wait of GPU jobs"))
    assert "The best of the others is fifo-skip" in waits
    assert "so this is better" in waits
    assert max(len(line) for line in lines if "█" in line or "└" in line) <= 80


def test_a_failed_build_is_said_without_waiting_for_the_day() -> None:
    def build() -> None:
        raise OSError("no compiler")

    with pytest.raises(OSError, match="no compiler"):
        show_day_beside(Console(file=StringIO()), build)


def test_columns_are_as_high_as_their_values() -> None:
    chart = list(bar_chart([0, 0.01, 1, 4, 6, 8, 99], top=8, rows=2))
    assert chart == [
        "     8 ┤    ▄██",
        "       ┤ ▁▂████",
        "     0 └───────",
    ]
    assert list(bar_chart([8], top=8, rows=1, ascii_only=True)) == ["     8 |@", "     0 +-"]


@pytest.mark.parametrize(("top", "rows"), [(0, 2), (-1, 2), (8, 0)])
def test_a_chart_of_nothing_is_refused(top: float, rows: int) -> None:
    with pytest.raises(ValueError, match="shows nothing"):
        list(bar_chart([1], top=top, rows=rows))


def test_hours_lie_below_their_columns() -> None:
    columns = 48
    line = hours_line(columns, 24.0, every=6)
    (base,) = list(bar_chart([0] * columns, top=1, rows=1))[-1:]
    first = base.index("└") + 1
    assert [line.index(text) - first for text in ("0 h", "6 h", "12 h", "18 h", "24 h")] == [0, 12, 24, 36, 48]
