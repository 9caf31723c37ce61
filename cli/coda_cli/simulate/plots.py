"""The plots of a study as SVG files. Equal outcomes give equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coda_sim.engine import CAUSES
from coda_sim.results.measure_names import MEASURE_BY_KEY
from coda_sim.results.series import QUANTILES
from coda_sim.results.statistics import mean
from coda_sim.runs import RunOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DAY_S = 86_400.0
MARKS: Final = ((10.0, "10 s"), (180.0, "3 min"), (600.0, "10 min"), (3600.0, "1 h"), (DAY_S, "1 d"))
_GRID: Final[dict[str, Any]] = {"alpha": 0.3, "linewidth": 0.5}


def write_plots(outcomes: Sequence[RunOutcome], folder: Path) -> list[Path]:
    """Write the plots; return their paths in the order to show them. Curves show each policy's first seed."""
    import matplotlib as mpl  # takes half a second, which no other command should wait for

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "coda", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    firsts = list({_title(outcome): outcome for outcome in reversed(outcomes)}.values())[::-1]
    plots = {
        "gpus_over_time.svg": _gpus_over_time(firsts),
        "waits.svg": _waits(firsts),
        "user_waits.svg": _user_waits(firsts),
        "fragmentation.svg": _fragmentation(outcomes),
        "core_changes.svg": _core_changes(firsts),
    }
    paths = []
    for name, figure in plots.items():
        if figure is None:
            (folder / name).unlink(missing_ok=True)  # of an earlier study
            continue
        figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
        paths.append(folder / name)
    return paths


def _title(outcome: RunOutcome) -> str:
    result = outcome.result
    return " ".join([result.policy, *(f"without {part}" for part in result.without)])


def _figure(rows: int, columns: int, *, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _gpus_over_time(outcomes: Sequence[RunOutcome]) -> Figure:
    """A panel for each policy, all with the same axes."""
    columns = 2 if len(outcomes) == 4 else min(3, len(outcomes))
    figure, panels = _figure(ceil(len(outcomes) / columns), columns, height=2.2)
    for place, (panel, outcome) in enumerate(zip(panels, outcomes, strict=False)):
        days = [at_s / DAY_S for at_s in outcome.series.at_s]
        for name in ("cpu_active", "gpu_active", "gpu_util"):
            shares = [100 * share for share in getattr(outcome.series, name)]
            panel.plot(days, shares, linewidth=0.9, label=MEASURE_BY_KEY[f"{name}_all"].name)
        panel.set(title=_title(outcome), ylim=(0, 102), xlabel="day", ylabel="%" if place % columns == 0 else "")
        panel.grid(**_GRID)
    for panel in panels[len(outcomes) :]:
        panel.set_axis_off()
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    return figure


def _waits(outcomes: Sequence[RunOutcome]) -> Figure:
    figure, panels = _figure(1, 2, height=3.4)
    shares = [100 * step / QUANTILES for step in range(QUANTILES + 1)]
    for panel, kind in zip(panels, ("gpu", "cpu"), strict=True):
        for outcome in outcomes:
            waits = getattr(outcome.series, f"{kind}_waits_s")
            if waits:
                panel.step([max(1.0, wait) for wait in waits], shares, where="post", label=_title(outcome))
        panel.set(title=f"Waits of {kind.upper()} jobs", xscale="log", ylim=(0, 102), ylabel="% started within")
        panel.set_xlim(1, None)
        panel.set_xticks([at_s for at_s, _ in MARKS], [mark for _, mark in MARKS], fontsize=7)
        panel.set_xticks([], minor=True)
        panel.grid(**_GRID)
        if panel.lines:
            panel.legend(frameon=False, loc="lower right")
        else:
            panel.text(0.5, 0.5, f"no {kind.upper()} job", ha="center", transform=panel.transAxes)
    return figure


def _user_waits(outcomes: Sequence[RunOutcome]) -> Figure | None:
    users = sorted({user for outcome in outcomes for user, _ in outcome.series.wait_p99_by_user_s})
    if not users:
        return None
    figure, (panel,) = _figure(1, 1, height=3.2)
    place_by_user = {user: place for place, user in enumerate(users)}
    for number, outcome in enumerate(outcomes):
        waits = outcome.series.wait_p99_by_user_s
        places = [place_by_user[user] + 0.8 * (number + 0.5) / len(outcomes) - 0.4 for user, _ in waits]
        panel.bar(places, [wait / 3600 for _, wait in waits], 0.8 / len(outcomes), label=_title(outcome))
    few = len(users) <= 40
    panel.set_xticks(range(len(users)) if few else [], users if few else [], rotation=60, ha="right")
    panel.set(title="99th percentile of the waits of each user's jobs", ylabel="hours")
    panel.set_xlabel("" if few else f"{len(users)} users, by name")
    panel.grid(axis="y", **_GRID)
    panel.margins(y=0.25)  # space for the legend
    panel.legend(frameon=False, ncols=4, loc="upper right")
    return figure


def _fragmentation(outcomes: Sequence[RunOutcome]) -> Figure:
    figure, (panel,) = _figure(1, 1)
    titles = list(dict.fromkeys(map(_title, outcomes)))
    below = [0.0] * len(titles)
    for cause in CAUSES:
        shares = [100 * _mean_of(outcomes, title, f"fragmentation_{cause}") for title in titles]
        panel.bar(titles, shares, 0.6, bottom=below, label=MEASURE_BY_KEY[f"fragmentation_{cause}"].name)
        below = [low + share for low, share in zip(below, shares, strict=True)]
    panel.set(title=f"{MEASURE_BY_KEY['fragmentation'].name}, by cause", ylabel="% of all GPUs")
    panel.set_xlim(-0.8, max(len(titles) - 0.2, 2.2))
    panel.tick_params(axis="x", rotation=30 if len(titles) > 5 else 0)
    panel.grid(axis="y", **_GRID)
    panel.margins(y=0.25)  # space for the legend
    panel.legend(frameon=False, ncols=2, loc="upper right")
    return figure


def _mean_of(outcomes: Sequence[RunOutcome], title: str, name: str) -> float:
    values = [outcome.result.metrics[name] for outcome in outcomes if _title(outcome) == title]
    return mean([value for value in values if value is not None]) or 0.0


def _core_changes(outcomes: Sequence[RunOutcome]) -> Figure | None:
    """Plot how many GPU jobs ended with how many cores more or less; None if no policy changes any."""
    if not any(gain for outcome in outcomes for gain, _ in outcome.series.jobs_by_cores_gained):
        return None
    figure, (panel,) = _figure(1, 1)
    for number, outcome in enumerate(outcomes):
        gains = outcome.series.jobs_by_cores_gained
        jobs = sum(count for _, count in gains) or 1
        places = [gain + 0.8 * (number + 0.5) / len(outcomes) - 0.4 for gain, _ in gains]
        panel.bar(places, [100 * count / jobs for _, count in gains], 0.8 / len(outcomes), label=_title(outcome))
    panel.set(title="Cores at the end against cores asked for", xlabel="cores of the job", ylabel="% of GPU jobs")
    panel.grid(axis="y", **_GRID)
    panel.margins(y=0.25)  # space for the legend
    panel.legend(frameon=False, ncols=4, loc="upper right")
    return figure
