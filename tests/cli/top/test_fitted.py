"""What a terminal shows of `coda top`: some of everything, whatever its size."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.live import Live

from coda_cli.top.cluster_use import ARRAYS, ArrayUse, ClusterUse, NodeUse, Throttle
from coda_cli.top.command import fitted

SHORT, AWS, LONG = "gpu-{:02d}", "ip-10-0-12-{}.eu-west-1.compute.internal", f"gpu-{{}}-{'x' * 60}"


def use_of(nodes: int, throttles: int, name: str = SHORT) -> ClusterUse:
    """The first nodes are throttled, one pod of each."""
    return ClusterUse(
        nodes=tuple(
            NodeUse(name=name.format(i), takes_pods=i != 1, gpus=8, cores=96, throttles=int(i < throttles))
            for i in range(nodes)
        ),
        arrays=tuple(ArrayUse(name=array) for array in ARRAYS),
        throttles=tuple(
            Throttle(node=name.format(i), pod=f"team/etl-{i}", what="cpu", value="1", original="4", since="12:00:00Z")
            for i in range(throttles)
        ),
    )


def screen(use: ClusterUse, width: int, height: int) -> str:
    """What stands on a terminal of that size."""
    said = io.StringIO()
    console = Console(file=said, width=width, height=height, force_terminal=True, color_system=None)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(fitted(use, console, ("You may not list events.",)), refresh=True)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue())


def empty_lines(text: str, height: int) -> int:
    """How many lines of a terminal show nothing: it is cleared first, so that they do not tell by their number."""
    return height - sum(bool(line.strip()) for line in text.splitlines())


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
@pytest.mark.parametrize("name", [SHORT, AWS])
@pytest.mark.parametrize(("nodes", "throttles"), [(5, 3), (100, 3), (100, 100), (1, 40), (1000, 0)])
def test_a_terminal_shows_nodes_throttles_and_notes_and_what_is_left_out(
    width: int, height: int, name: str, nodes: int, throttles: int
) -> None:
    text = screen(use_of(nodes, throttles, name), width, height)
    rows, limits = len(re.findall("0/8", text)), len(re.findall("team/etl", text))
    assert rows >= 1
    assert limits >= min(throttles, 1)
    assert "You may not list events." in text
    assert empty_lines(text, height) <= 1 or (rows, limits) == (nodes, throttles), "lines are left"
    left_out = re.findall(r"and (\d+) (node|throttle)s? more", text)
    assert dict(map(reversed, left_out)) == {
        what: str(count) for what, count in (("node", nodes - rows), ("throttle", throttles - limits)) if count
    }


@pytest.mark.parametrize(("width", "height", "name"), [(40, 100, AWS), (60, 40, LONG)])
@pytest.mark.parametrize(("nodes", "throttles"), [(100, 3), (100, 100), (1, 40), (50, 2)])
def test_a_terminal_is_filled_as_far_as_one_row_more_does_not_fit(
    width: int, height: int, name: str, nodes: int, throttles: int
) -> None:
    """Names are folded, so that rows take up to five lines, and those of the two tables differ."""
    text = screen(use_of(nodes, throttles, name), width, height)
    assert empty_lines(text, height) < 5 or "more: coda top" not in text, "lines are left"


def test_names_lose_the_domain_on_a_terminal_as_long_as_they_differ_without_it() -> None:
    assert "ip-10-0-12-7 " in screen(use_of(8, 0, AWS), 80, 40)
    assert "internal" not in screen(use_of(8, 8, AWS), 80, 40)
    alike = screen(use_of(4, 0, "gpu.rack-{}.example.com"), 120, 40)
    assert "gpu.rack-3.example.com" in alike


@pytest.mark.parametrize("name", ["10.0.0.1{}", "10.{}.0.4", "cn-hangzhou.10.0.0.1{}", "1{}.example.com", "{}.2-a"])
def test_addresses_are_never_cut(name: str) -> None:
    for count in (1, 2):
        text = screen(use_of(count, count, name), 120, 40)
        assert all(text.count(f"{name.format(i)} ") == 2 for i in range(count)), "in both tables"


def test_a_terminal_that_is_too_small_shows_the_first_lines() -> None:
    assert "Arrays" in screen(use_of(9, 9), 40, 5)
