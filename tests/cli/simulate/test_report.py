"""The report in words and pictures: who is better, what a measure means, which job was where."""

from __future__ import annotations

import gzip
import re
from html import escape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coda_cli.__main__ import command_line
from coda_cli.simulate.comparison import Comparison
from coda_cli.simulate.timeline import LANE, MOST_BARS, MOST_NODES, Bar, View, drawn, read_bars, view_of
from coda_cli.simulate.verdict import ASKED, verdict
from coda_sim.results.job_records import COLUMNS
from coda_sim.results.measure_meanings import GLOSSARY, MEANINGS
from coda_sim.results.measure_names import MEASURE_BY_KEY
from coda_sim.results.summary import Interval
from coda_sim.traces.trace import COLUMNS as TRACE_COLUMNS

TRACE = Path(__file__).parents[3] / "examples" / "traces" / "small.csv"


def test_every_measure_has_a_meaning() -> None:
    assert set(MEANINGS) == set(MEASURE_BY_KEY)
    assert all(text.endswith(".") for text in MEANINGS.values())


def compared(**means: float | tuple[float, float]) -> Comparison:
    """Mean waits of GPU jobs in seconds, perhaps with half the width of the interval; nothing else is known."""
    titles = [title.replace("_", "-") for title in means]
    pairs = [value if isinstance(value, tuple) else (value, 0.0) for value in means.values()]
    waits = [
        Interval(mean=mean, low=mean - half if half else None, high=mean + half if half else None)
        for mean, half in pairs
    ]
    return Comparison(titles, [dict.fromkeys(ASKED) | {"gpu_wait_mean_s": wait} for wait in waits])


@pytest.mark.parametrize(
    ("comparison", "end"),
    [
        (compared(coda=60.0, drf=99.0, fgd=90.0), "is fgd: 1m 30s, so this is better: 33 % less."),
        (compared(drf=90.0, coda=180.0), "is drf: 1m 30s, so this is worse: 2.0 times as much."),
        (compared(coda=60.0, drf=61.0), "is drf: 1m 1s, which is about the same."),
        (compared(coda=(60.0, 30.0), drf=(100.0, 20.0)), "which is about the same."),
        (compared(coda=6.0, drf=6000.0), "so this is better: less than a hundredth of it."),
        (compared(coda=60.0, drf=0.0), "is drf: 0s, so this is worse."),
        (compared(coda=60.0, srtf=1.0), "mean wait of GPU jobs: 1m."),
        (compared(drf=60.0), "Under drf, mean wait of GPU jobs: 1m."),
    ],
    ids=["less", "more", "near", "chance", "nearly nothing", "nothing", "a bound is no rival", "alone"],
)
def test_the_verdict_names_the_best_of_the_others(comparison: Comparison, end: str) -> None:
    (sentence,) = verdict(comparison)
    assert sentence.endswith(end), sentence


def bar(job: str, node: str = "n1", *, gpus: int = 1, start_s: float = 0.0, end_s: float = 10.0) -> Bar:
    return Bar(job, "ana", node, gpus, 4, 0.0, start_s, end_s, True)


def records(folder: Path, *lines: str) -> Path:
    path = folder / "jobs.csv.gz"
    path.write_bytes(gzip.compress("\n".join([",".join(COLUMNS), *lines, ""]).encode()))
    return path


def test_pieces_that_differ_in_cores_alone_are_one_bar_and_cpu_jobs_are_none(tmp_path: Path) -> None:
    def line(job: str, piece: int, start: int, end: int, gpus: int, cores: int) -> str:
        return f"{job},ana,gpu,0,9,1,{gpus},{cores},{piece},1,{start},{end},n1,{gpus},{cores},0,1,1,1,1"

    path = records(
        tmp_path,
        line("a", 1, 0, 5, 2, 8),
        line("a", 2, 5, 9, 2, 6),
        line("a", 3, 20, 30, 2, 6),
        line("cpu", 1, 0, 9, 0, 4),
        "never,ana,gpu,0,9,1,2,8" + "," * 11 + ",0",
    )
    assert [(one.job, one.start_s, one.end_s, one.cores) for one in read_bars(path)] == [
        ("a", 0.0, 9.0, 6),
        ("a", 20.0, 30.0, 6),
    ]


def test_a_view_is_of_all_runs_and_bounded() -> None:
    assert view_of([]) is None
    assert view_of([[], [bar("a")]]) is None
    assert view_of([[bar("a")], [bar("b", end_s=99.0)]]) == View(0.0, 99.0, ("n1",))
    many = [bar(f"j{at}", f"n{at % 50}", start_s=float(at), end_s=at + 1.0) for at in range(4 * MOST_BARS)]
    view = view_of([many])
    assert view is not None
    assert len(view.nodes) == MOST_NODES
    drawing = drawn(many, view, "t")
    assert 0 < drawing.count('class="job"') <= MOST_BARS


def test_bars_of_one_node_do_not_overlap_and_names_cannot_break_the_page() -> None:
    jobs = [
        *(bar("a", gpus=2), bar("b", gpus=1, end_s=30.0), bar("c<script>", gpus=1)),
        bar("in two parts", gpus=3, start_s=10.0, end_s=20.0),
    ]
    drawing = drawn(jobs, View(0.0, 20.0, ("n1",)), "t")
    assert "<script>" not in drawing
    spots = re.findall(r'class="job" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawing)
    boxes = [tuple(map(float, spot)) for spot in spots]
    assert len(boxes) == 5  # one is on both sides of "b"
    assert max(y + height for _, y, _, height in boxes) <= 6 + 8 * LANE
    for number, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[number + 1 :]:
            apart = x + width <= other_x + 0.2 or other_x + other_width <= x + 0.2
            assert apart or y + height <= other_y or other_y + other_height <= y


def test_the_report_is_one_file_with_words_timelines_and_a_glossary(tmp_path: Path) -> None:
    words = ["simulate", "--trace", str(TRACE), "--cluster", "4x8x48", "--policy", "fifo-skip", "--policy", "coda"]
    ended = CliRunner().invoke(command_line(), [*words, "--out", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    text = (tmp_path / "report.html").read_text()
    assert "Under coda, mean wait of GPU jobs:" in text
    assert "The best of the others is fifo-skip" in text
    assert text.count('class="timeline"') == 2
    assert all(f"<dt>{word}</dt>" in text for word in GLOSSARY)
    assert all(f"<dd>{escape(meaning)}</dd>" in text for meaning in MEANINGS.values())
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(?:fill|stroke): (?:#000000|#ffffff)", text), "a plot has colours of its own on dark paper"
    assert re.findall(r"<(?:script|link|img)\b|url\(http", text) == []


@pytest.mark.parametrize("profiles", ["paper", "recorded"])
def test_what_rests_on_assumed_speeds_is_said_before_the_verdict(tmp_path: Path, profiles: str) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(f"{','.join(TRACE_COLUMNS)}\na1,u1,v,0,9000,2,1,,1,passed,gpu\na2,u2,v,60,600,2,1,,1,passed,gpu\n")
    words = ["simulate", "--trace", str(trace), "--cluster", "1x2x28", "--profiles", profiles]
    ended = CliRunner().invoke(command_line(), [*words, "--out", str(tmp_path / "out")])
    assert ended.exit_code == 0, ended.output
    printed = " ".join(ended.stdout.split())
    page = (tmp_path / "out" / "report.html").read_text()
    said = re.compile(r"GPU jobs run up to (\d+) % faster than recorded under coda, \d+ % faster on average: how cores")
    title = "run times as recorded" if profiles == "recorded" else "speeds assumed (paper)"
    assert title in printed
    assert f"{title}, costs paid</h1>" in page
    assert bool(said.search(printed)) is bool(said.search(page)) is (profiles == "paper")
    if found := said.search(page):
        assert int(found.group(1)) > 50  # one core for two GPUs
        assert found.start() < page.index("Under coda, mean wait")
