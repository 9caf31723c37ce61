"""Draws docs/architecture.svg from the lists below: `make picture`. Every position is in pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 1080
HEIGHT: Final = 624
LINE: Final = 19
STYLE: Final = """
svg { --paper: #ffffff; --ink: #1f2328; --soft: #57606a; --edge: #8c959f;
      --kube: #ddf4ff; --coda: #dafbe1; --node: #fff8c5; --core: #fbefff; --plain: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9da7b3; --edge: #6e7681;
        --kube: #0c2d4d; --coda: #12351f; --node: #3a2f0b; --core: #2f1d45; --plain: #1c2128; } }
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
.title { font-weight: 600; }
.label { font-size: 13px; fill: var(--soft); }
.paper { fill: var(--paper); }
.box { stroke: var(--edge); }
.arrow { stroke: var(--soft); stroke-width: 1.5; fill: none; }
.head { fill: var(--soft); }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rounded box: its first line is the title. `colour` is a name of the style sheet."""

    x: int
    y: int
    width: int
    height: int
    colour: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A straight arrow with a label of some lines, whose first one starts at `label_x`, `label_y`."""

    start: tuple[int, int]
    end: tuple[int, int]
    label: tuple[str, ...]
    label_x: int
    label_y: int
    both_ways: bool = False


BOXES: Final = (
    Box(x=30, y=24, width=320, height=52, colour="plain", lines=("ML user", "one TrainingJob per training run")),
    Box(
        x=380, y=24, width=320, height=52, colour="plain", lines=("SRE", "kubectl get tj, events, metrics, coda check")
    ),
    Box(x=730, y=24, width=320, height=52, colour="plain", lines=("Other users", "CPU pods and other plain pods")),
    Box(
        x=30,
        y=134,
        width=1020,
        height=56,
        colour="kube",
        lines=("Kubernetes API server", "TrainingJobs, placements in their status, pods, nodes, NodeProfiles, Leases"),
    ),
    Box(
        x=30,
        y=286,
        width=220,
        height=172,
        colour="coda",
        lines=(
            "Operator",
            "one life cycle per job:",
            "creates the gang's pods,",
            "pinned to their nodes;",
            "rolls back as a whole;",
            "retries, deadlines,",
            "resizes in place",
        ),
    ),
    Box(
        x=280,
        y=286,
        width=220,
        height=172,
        colour="coda",
        lines=(
            "Scheduler extender",
            "planner (leader): who",
            "starts where, and why",
            "the rest waits;",
            "guard: keeps other pods",
            "off capacity promised",
            "to a gang",
        ),
    ),
    Box(
        x=620,
        y=286,
        width=180,
        height=172,
        colour="kube",
        lines=(
            "kube-scheduler",
            "profile \u201ccoda\u201d, beside",
            "the cluster's own;",
            "unmodified:",
            "binds pods",
        ),
    ),
    Box(x=830, y=286, width=220, height=172, colour="node", lines=("Every GPU node",)),
    Box(x=840, y=320, width=200, height=48, colour="kube", lines=("kubelet", "ranks and CPU pods")),
    Box(
        x=840,
        y=376,
        width=200,
        height=70,
        colour="coda",
        lines=("Node agent, optional", "finds a job's cores,", "throttles CPU pods"),
    ),
    Box(
        x=30,
        y=520,
        width=1020,
        height=80,
        colour="core",
        lines=(
            "core/coda: every decision, as pure functions without clock, randomness, input or output",
            "planning cycle, life cycle, guard, core allocator, contention eliminator",
            "\u201ccoda simulate\u201d calls the same functions in virtual time",
        ),
    ),
)
ARROWS: Final = (
    Arrow(start=(190, 76), end=(190, 134), label=("creates",), label_x=200, label_y=110),
    Arrow(start=(540, 134), end=(540, 76), label=("says why a job waits",), label_x=550, label_y=110),
    Arrow(start=(890, 76), end=(890, 134), label=("create",), label_x=900, label_y=110),
    Arrow(
        start=(90, 286),
        end=(90, 190),
        label=("pods, phase,", "events"),
        label_x=100,
        label_y=232,
        both_ways=True,
    ),
    Arrow(
        start=(340, 286),
        end=(340, 190),
        label=("placements,", "wait reasons"),
        label_x=350,
        label_y=232,
        both_ways=True,
    ),
    Arrow(start=(690, 286), end=(690, 190), label=("binds",), label_x=700, label_y=242, both_ways=True),
    Arrow(
        start=(890, 286),
        end=(890, 190),
        label=("wishes for cores,", "NodeProfile"),
        label_x=900,
        label_y=232,
        both_ways=True,
    ),
    Arrow(start=(620, 372), end=(500, 372), label=("filter,", "prioritize"), label_x=526, label_y=338),
    Arrow(start=(140, 520), end=(140, 458), label=("decisions",), label_x=150, label_y=494),
    Arrow(start=(390, 520), end=(390, 458), label=("decisions",), label_x=400, label_y=494),
    Arrow(start=(940, 520), end=(940, 458), label=("decisions",), label_x=950, label_y=494),
)


def svg() -> str:
    """The whole picture. The same text for the same lists."""
    return "\n".join(_elements()) + "\n"


def _elements() -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    yield "<title>Coda's parts and what they write</title>"
    yield f"<style>{STYLE}</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    )
    yield f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="12"/>'
    for box in BOXES:
        yield from _box(box)
    for arrow in ARROWS:
        yield from _arrow(arrow)
    yield "</svg>"


def _box(box: Box) -> Iterator[str]:
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    yield f'<rect class="box" style="fill: var(--{box.colour})" {place} rx="8"/>'
    for number, line in enumerate(box.lines):
        name = "title" if number == 0 else "line"
        yield f'<text class="{name}" x="{box.x + 14}" y="{box.y + 22 + LINE * number}">{escape(line)}</text>'


def _arrow(arrow: Arrow) -> Iterator[str]:
    (x1, y1), (x2, y2) = arrow.start, arrow.end
    ends = 'marker-start="url(#head)" marker-end="url(#head)"' if arrow.both_ways else 'marker-end="url(#head)"'
    yield f'<path class="arrow" d="M{x1} {y1} L{x2} {y2}" {ends}/>'
    for number, line in enumerate(arrow.label):
        y = arrow.label_y + (LINE - 2) * number
        yield f'<text class="label" x="{arrow.label_x}" y="{y}">{escape(line)}</text>'


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(svg())
