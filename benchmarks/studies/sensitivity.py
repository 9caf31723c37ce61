"""Table 3: what becomes of the results where an assumption is wrong. One table and one plot per assumption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from coda_sim.runs import RunOrder
from coda_sim.traces import Selection
from coda_sim.workload.inaccuracy import Inaccuracy
from studies.cells import Cell
from studies.plots import Line, Panel, draw_lines
from studies.scope import Found, Scope, Table
from studies.wording import interval_text, markdown_table, paragraph, source_line
from studies.workloads import month_order, quarter

Change = Callable[[RunOrder], RunOrder]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One assumption: its points, each with what it changes of an order, and the policies that it may touch."""

    name: str
    title: str
    heading: str
    note: str
    points: tuple[tuple[str, Change], ...]
    policies: tuple[str, ...] = ("coda", "fifo-skip")


def _load(factor: float, order: RunOrder) -> RunOrder:
    return replace(order, source=replace(order.source, selection=Selection(compress=factor)))


def _cpu_jobs(factor: float, order: RunOrder) -> RunOrder:
    month = order.source.month
    return replace(order, source=replace(order.source, month=replace(month, cpu_jobs=round(factor * month.cpu_jobs))))


def _shape(template: str, order: RunOrder) -> RunOrder:
    """Nodes as multiples of a twentieth of the cluster's GPUs."""
    month = order.source.month
    twentieth = month.shape.gpus / 20
    groups = []
    for group in template.split(","):
        share, gpus, cores = group.split("x")
        groups.append(f"{max(1, round(float(share) * twentieth / int(gpus)))}x{gpus}x{cores}")
    return replace(order, cluster=",".join(groups))


def _wrong_categories(share: float, order: RunOrder) -> RunOrder:
    return replace(order, models=replace(order.models, wrong_category_share=share))


def _told(inaccuracy: Inaccuracy, order: RunOrder) -> RunOrder:
    return replace(order, inaccuracy=inaccuracy)


def _paying(setting: CostSetting, order: RunOrder) -> RunOrder:
    return replace(order, costs=COSTS_BY_SETTING[setting])


def _resuming(share: float, order: RunOrder) -> RunOrder:
    return replace(order, costs=replace(order.costs, resuming_gpu_jobs=share))


QUESTIONS: Final = (
    Question(
        name="load",
        title="Load",
        heading="load, times the month's",
        note="Arrivals are stretched or compressed, run times are not.",
        points=tuple((f"{factor:g}", partial(_load, factor)) for factor in (0.6, 0.7, 0.8, 0.9, 1.0, 1.1)),
    ),
    Question(
        name="cpu-jobs",
        title="CPU jobs",
        heading="CPU jobs, times the month's",
        note="The GPU jobs are the same throughout.",
        points=tuple((f"{factor:g}", partial(_cpu_jobs, factor)) for factor in (0.0, 0.5, 1.0, 1.5)),
    ),
    Question(
        name="shapes",
        title="Node shapes",
        heading="nodes: GPUs x cores",
        note="As many GPUs in other nodes. The month's own: 40 % of the GPUs on nodes of 8, the others on nodes of 4.",
        points=(
            ("mixed", lambda order: order),
            ("4x28", partial(_shape, "20x4x28")),
            ("5x28", partial(_shape, "20x5x28")),
            ("8x28", partial(_shape, "20x8x28")),
            ("8x48", partial(_shape, "20x8x48")),
            ("8x96", partial(_shape, "20x8x96")),
        ),
    ),
    Question(
        name="categories",
        title="Wrong categories",
        heading="share of jobs whose user names a wrong category",
        note="The category gives the first start point; searches and history mend it.",
        points=tuple((f"{share:.0%}", partial(_wrong_categories, share)) for share in (0.0, 0.25, 0.5, 1.0)),
        policies=("coda",),
    ),
    Question(
        name="noise",
        title="Noise",
        heading="relative standard deviation of one 1-s sample of GPU utilisation",
        note="45 samples make a reading, as the agent takes them.",
        points=tuple(
            (f"{noise:.0%}", partial(_told, Inaccuracy(reading_noise=noise))) for noise in (0.0, 0.01, 0.03, 0.1, 0.3)
        ),
        policies=("coda",),
    ),
    Question(
        name="estimates",
        title="Run times told wrongly",
        heading="factor by which told run times are off, up or down, at most",
        note=(
            "Log-uniform for each job. coda is not told how long a job will run; it expects ends from those of "
            "finished jobs, which are off as much. sjf orders by what it is told."
        ),
        points=tuple(
            ("exact" if error == 1 else f"{1 / error:g} to {error:g}", partial(_told, Inaccuracy(run_time_error=error)))
            for error in (1.0, 1.5, 2.5, 5.0)
        ),
        policies=("coda", "sjf"),
    ),
    Question(
        name="history",
        title="No history",
        heading="history of finished jobs",
        note="Without it every job starts at its category's start point, and no end is expected.",
        points=(("kept", lambda order: order), ("none", partial(_told, Inaccuracy(forgets=True)))),
        policies=("coda",),
    ),
    Question(
        name="restart",
        title="Restart or resume",
        heading="a CPU job that was stopped",
        note="A pod without a checkpoint begins again. Free: resizes take no time either.",
        points=(
            ("free", partial(_paying, CostSetting.FREE)),
            ("resumes", partial(_paying, CostSetting.RESUMED)),
            ("begins again", partial(_paying, CostSetting.PAID)),
        ),
        policies=("coda",),
    ),
    Question(
        name="checkpoints",
        title="GPU jobs with checkpoints",
        heading="share of GPU jobs that go on where they were",
        note="A GPU job without checkpoints is not stopped for another one (`decisions/0057`).",
        points=tuple((f"{share:.0%}", partial(_resuming, share)) for share in (1.0, 0.5, 0.0)),
        policies=("coda", "tiresias-las"),
    ),
)
COLUMNS: Final = (
    ("busy while a job waits, %", "gpu_util_queueing", 100.0, 1),
    ("GPU wait, mean, s", "gpu_wait_mean_s", 1.0, 0),
    ("GPU JCT, mean, s", "gpu_jct_mean_s", 1.0, 0),
    ("GPU jobs at once, %", "gpu_started_10s", 100.0, 1),
    ("CPU jobs in 3 min, %", "cpu_started_3min", 100.0, 1),
    ("idle for cores, %", "fragmentation_cores", 100.0, 1),
    ("lost core-h", "lost_core_s", 1 / 3600, 0),
)


def points_of(question: Question, scope: Scope) -> tuple[tuple[str, Change], ...]:
    """Return the points of a question; in a quick run its first and last."""
    return (question.points[0], question.points[-1]) if scope.quick else question.points


def cells_of(question: Question, point: tuple[str, Change], policy: str, scope: Scope) -> tuple[Cell, ...]:
    """Return the cells of one point under one policy, by seed."""
    title, change = point
    month = quarter(quick=scope.quick)
    seeds = scope.usual_seeds[:1] if scope.quick else scope.usual_seeds
    return tuple(
        Cell(name=f"{question.name} {title} {policy} seed {seed}", order=change(month_order(month, policy, seed)))
        for seed in seeds
    )


def cells(scope: Scope) -> tuple[Cell, ...]:
    """Return all cells."""
    return tuple(
        cell
        for question in QUESTIONS
        for point in points_of(question, scope)
        for policy in question.policies
        for cell in cells_of(question, point, policy, scope)
    )


def text(scope: Scope, found: Found) -> str:
    """Return a table and a plot per question."""
    seeds = scope.usual_seeds[:1] if scope.quick else scope.usual_seeds
    return "\n\n".join(
        (
            "### Sensitivity",
            paragraph(
                "Ten days of a quarter of the month (20 nodes, 100 GPUs), with one assumption changed at a time. "
                "Mean and half the width of the 95 % interval."
            ),
            *(_one(question, scope, found) for question in QUESTIONS),
            source_line("make results ONLY=sensitivity", seeds, scope.version),
        )
    )


def _one(question: Question, scope: Scope, found: Found) -> str:
    points = points_of(question, scope)
    rows = []
    for policy in question.policies:
        for point in points:
            cells = cells_of(question, point, policy, scope)
            shown = [interval_text(found.values(cells, key), scale, decimals) for _, key, scale, decimals in COLUMNS]
            rows.append((policy, point[0], *shown))
    path = scope.plots / f"sensitivity-{question.name}.svg"
    draw_lines(path, [title for title, _ in points], _panels(question, scope, found), heading=question.heading)
    return "\n\n".join(
        (
            f"#### {question.title}",
            paragraph(question.note),
            markdown_table(("policy", question.heading, *(heading for heading, *_ in COLUMNS)), rows),
            f"![{question.title}]({scope.plots.name}/{path.name})",
        )
    )


def _panels(question: Question, scope: Scope, found: Found) -> list[Panel]:
    points = points_of(question, scope)
    panels = []
    for title, key, scale, _ in COLUMNS[:3]:
        lines = [
            Line(
                title=policy,
                values=[found.values(cells_of(question, point, policy, scope), key) for point in points],
            )
            for policy in question.policies
        ]
        panels.append(Panel(title=title, lines=lines, scale=scale, is_log=key == "gpu_wait_mean_s"))
    return panels


TABLE: Final = Table(name="sensitivity", cells=cells, text=text)
