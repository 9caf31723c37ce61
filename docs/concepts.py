"""Draws the pictures of docs/concepts.md into docs/pictures from the lists below: `make picture`. Units: pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

LINE: Final = 18
STYLE: Final = """
svg { --paper: #ffffff; --ink: #1f2328; --soft: #57606a; --edge: #8c959f;
      --gpu: #dafbe1; --small: #ddf4ff; --cpu: #fff8c5; --lent: #ffe2cc; --plain: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9da7b3; --edge: #6e7681;
        --gpu: #12351f; --small: #0c2d4d; --cpu: #3a2f0b; --lent: #4a2b12; --plain: #1c2128; } }
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
.title { font-weight: 600; }
.label { font-size: 13px; fill: var(--soft); }
.paper { fill: var(--paper); }
.box { stroke: var(--edge); }
.arrow { stroke: var(--soft); stroke-width: 1.5; fill: none; marker-end: url(#head); }
#head path { fill: var(--soft); }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A rounded box with lines of text in its middle. `colour`: a name of the style sheet."""

    x: int
    y: int
    width: int
    height: int
    colour: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text beside the boxes."""

    x: int
    y: int
    text: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A straight arrow."""

    start: tuple[int, int]
    end: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Picture:
    """One drawing. `title` is what a screen reader says."""

    title: str
    width: int
    height: int
    parts: tuple[Box | Label | Arrow, ...]


LIFE: Final = Picture(
    title="The life of a TrainingJob: Queued, placed, Launched, Starting, Running, Succeeded; Restarting leads back",
    width=960,
    height=230,
    parts=(
        Box(20, 30, 140, 56, "plain", ("Queued", "one object, no pods")),
        Box(220, 30, 150, 56, "small", ("placed", "nodes for all ranks")),
        Box(430, 30, 140, 56, "gpu", ("Launched", "all pods exist")),
        Box(630, 30, 140, 56, "gpu", ("Running", "all ranks started")),
        Box(820, 30, 120, 56, "plain", ("Succeeded", "or Failed")),
        Arrow((160, 58), (216, 58)),
        Arrow((370, 58), (426, 58)),
        Arrow((570, 58), (626, 58)),
        Arrow((770, 58), (816, 58)),
        Box(430, 150, 140, 56, "lent", ("Restarting", "all pods are ended")),
        Arrow((500, 86), (500, 146)),
        Arrow((660, 86), (574, 160)),
        Arrow((430, 178), (100, 90)),
        Label(140, 200, "the next attempt waits again, after a pause"),
        Label(640, 140, "a rank fails, a node is lost"),
    ),
)

ARRAYS: Final = Picture(
    title="A node's GPUs and cores: the GPU array has GPUs and some cores, the CPU array the other cores; each lends",
    width=960,
    height=250,
    parts=(
        Label(20, 40, "nodes for large jobs"),
        Box(220, 20, 330, 44, "gpu", ("GPUs and their cores: jobs of 4 GPUs or more",)),
        Box(560, 20, 150, 44, "lent", ("lent to CPU jobs",)),
        Box(720, 20, 220, 44, "cpu", ("cores of CPU jobs",)),
        Label(20, 100, "nodes for small jobs"),
        Box(220, 80, 330, 44, "small", ("GPUs and their cores: jobs of 1 to 3 GPUs",)),
        Box(560, 80, 150, 44, "lent", ("lent to CPU jobs",)),
        Box(720, 80, 220, 44, "cpu", ("cores of CPU jobs",)),
        Label(220, 165, "GPU array: 4 cores per GPU, or as an ArrayQuota says"),
        Label(720, 165, "CPU array: the other cores"),
        Label(
            220,
            192,
            "What a training job needs back is taken back at once: the newest borrowers on its node are evicted.",
        ),
        Label(220, 216, "A small job may be a guest on a node for large ones. It moves if it can resume."),
    ),
)

LOOP: Final = Picture(
    title="The node agent measures; the planner decides about cores; the kubelet resizes; CPU pods may be throttled",
    width=960,
    height=320,
    parts=(
        Box(350, 20, 260, 56, "lent", ("CPU pod", "takes memory bandwidth of training")),
        Arrow((480, 130), (480, 80)),
        Label(495, 110, "limits, while it helps"),
        Box(20, 134, 220, 60, "gpu", ("rank with cores: auto", "its GPUs' use, every second")),
        Box(370, 134, 220, 60, "small", ("node agent", "tries fewer or more cores")),
        Box(720, 134, 220, 60, "plain", ("planner", "grants what is free")),
        Arrow((240, 164), (366, 164)),
        Label(262, 154, "measures"),
        Arrow((590, 164), (716, 164)),
        Label(625, 154, "wishes"),
        Arrow((830, 194), (830, 244)),
        Box(720, 248, 220, 56, "plain", ("kubelet", "resizes in place, no restart")),
        Arrow((720, 276), (160, 198)),
        Label(360, 270, "the cores that were granted"),
    ),
)

PICTURES: Final = {"life.svg": LIFE, "arrays.svg": ARRAYS, "agent.svg": LOOP}


def svg(picture: Picture) -> str:
    """Return the drawing."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {picture.width} {picture.height}" role="img">\n'
        f"<title>{escape(picture.title)}</title>\n<style>{STYLE}</style>\n"
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L10 5L0 10z"/></marker></defs>\n'
        f'<rect class="paper" width="{picture.width}" height="{picture.height}"/>\n'
    )
    return head + "".join(line for part in picture.parts for line in _drawn(part)) + "</svg>\n"


def _drawn(part: Box | Label | Arrow) -> Iterator[str]:
    if isinstance(part, Label):
        yield f'<text class="label" x="{part.x}" y="{part.y}">{escape(part.text)}</text>\n'
    elif isinstance(part, Arrow):
        (x, y), (to_x, to_y) = part.start, part.end
        yield f'<line class="arrow" x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"/>\n'
    else:
        yield (
            f'<rect class="box" x="{part.x}" y="{part.y}" width="{part.width}" height="{part.height}" rx="6" '
            f'style="fill: var(--{part.colour})"/>\n'
        )
        middle = part.y + part.height / 2 + 5 - LINE * (len(part.lines) - 1) / 2
        for number, line in enumerate(part.lines):
            kind = "title" if number == 0 and len(part.lines) > 1 else "label"
            at = f'x="{part.x + part.width / 2:g}" y="{middle + LINE * number:g}"'
            yield f'<text class="{kind}" text-anchor="middle" {at}>{escape(line)}</text>\n'


if __name__ == "__main__":
    for name, picture in PICTURES.items():
        Path(__file__).with_name("pictures").joinpath(name).write_text(svg(picture), encoding="utf-8")
