"""The workloads of the studies: real traces on the clusters their sources advise, and the generated month.

`keep` and `compress` are chosen so that GPU jobs queue under arrival order; results are not those of the source's
cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coda_sim.durations import duration_from_seconds
from coda_sim.runs import RunOrder
from coda_sim.traces import Selection
from coda_sim.workload import MonthConfig, WorkloadSource
from coda_sim.workload.month_config import lengthened, widened

ASSUMED: Final = "paper"
RECORDED: Final = "recorded"
PROFILES: Final = (ASSUMED, RECORDED)


def profiles_in_words(profiles: str) -> str:
    """Return how run times depend on cores, for a heading."""
    return "assumed curves" if profiles == ASSUMED else "as recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWorkload:
    """A real trace as it is simulated. `note`: what a reader must know of it. `few`: its rows in a quick run."""

    name: str
    title: str
    file: str
    cluster: str
    selection: Selection
    note: str = ""
    few: int = 150
    quick_cluster: str = "3x8x48"

    def order(self, folder: Path, profiles: str, policy: str, seed: int, *, quick: bool) -> RunOrder:
        """Return the order of one run; a quick one has the first rows on a small cluster."""
        selection = replace(self.selection, limit=self.few, max_duration_s=2 * 3600.0) if quick else self.selection
        return RunOrder(
            source=WorkloadSource(trace=folder / self.file, selection=selection),
            cluster=self.quick_cluster if quick else self.cluster,
            profiles=profiles,
            policy=policy,
            seed=seed,
        )

    def command(self, profiles: str, seed: int) -> str:
        """Return the command that shows the same numbers."""
        words = ["coda simulate", f"--trace {self.file}", f"--cluster {self.cluster}", *options_of(self.selection)]
        return " ".join([*words, f"--profiles {profiles}", f"--seed {seed}", "--policy all"])


def options_of(selection: Selection) -> list[str]:
    """Return a selection as options of `coda simulate`."""
    named = (
        ("--keep", selection.keep),
        ("--sample", selection.sample),
        ("--max-gpus-per-job", selection.max_gpus_per_job),
        ("--compress", selection.compress if selection.compress != 1 else None),
        ("--limit", selection.limit),
        (
            "--max-duration",
            selection.max_duration_s and duration_from_seconds(selection.max_duration_s).replace(" ", ""),
        ),
    )
    return [
        f"{option} {value:g}" if isinstance(value, float) else f"{option} {value}" for option, value in named if value
    ]


TRACES: Final = (
    TraceWorkload(
        name="venus-13d",
        title="Venus, 13 days",
        file="helios_venus_mixed_13d.csv.gz",
        cluster="80x5x28",
        selection=Selection(keep=600, max_gpus_per_job=40),
    ),
    TraceWorkload(
        name="venus-august",
        title="Venus, August",
        file="helios_venus_2020-08_composite.csv.gz",
        cluster="80x5x28",
        selection=Selection(keep=600, max_gpus_per_job=40),
        note="Partly rebuilt: cores, users and all CPU jobs are drawn from the 13 days.",
    ),
    TraceWorkload(
        name="openb",
        title="openb",
        file="openb_2023_default.csv.gz",
        cluster="80x5x28",
        selection=Selection(compress=20.0),
        note="Names no users, so drf is fifo-skip. Nearly all jobs have one GPU and about ten cores.",
        few=200,
        quick_cluster="4x5x28",
    ),
    TraceWorkload(
        name="openb-cpu300",
        title="openb with more CPU pods",
        file="openb_2023_cpu300.csv.gz",
        cluster="80x5x28",
        selection=Selection(compress=13.0),
        note="CPU pods are resampled upstream: two thirds are clones.",
        few=200,
        quick_cluster="4x5x28",
    ),
    TraceWorkload(
        name="philly",
        title="Philly, October",
        file="philly_2017-10_gpu.csv.gz",
        cluster="42x2x12,29x8x48",
        selection=Selection(keep=200),
        note=(
            "An eighth of the official machine list, in its own shapes. GPU jobs only; the source has no cores (four "
            "per GPU are assumed, six are there) and no users, so drf is fifo-skip."
        ),
    ),
)


def traces_in(folder: Path | None) -> list[TraceWorkload]:
    """Return the traces whose files are in the folder."""
    return [one for one in TRACES if folder is not None and (folder / one.file).exists()]


def month_of(*, quick: bool) -> MonthConfig:
    """Return the whole month; in a quick run a day of a twentieth of it."""
    return lengthened(widened(MonthConfig(), 0.05), 1 / 30) if quick else MonthConfig()


def quarter(*, quick: bool) -> MonthConfig:
    """Return what sensitivity and ablations run on: ten days of a quarter of the month's cluster and jobs."""
    return month_of(quick=True) if quick else lengthened(widened(MonthConfig(), 0.25), 1 / 3)


def month_order(month: MonthConfig, policy: str, seed: int) -> RunOrder:
    """Return the order of a run of a generated month on its own cluster."""
    return RunOrder(
        source=WorkloadSource(month=month), cluster=month.cluster, profiles=ASSUMED, policy=policy, seed=seed
    )
