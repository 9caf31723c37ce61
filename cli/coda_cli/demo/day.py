"""What `coda demo` shows first: a day of a full cluster under two policies, while the control plane is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Thread
from typing import Final, TypeVar

from rich.console import Console

from coda_cli.demo.bar_chart import bar_chart, hours_line
from coda_cli.simulate.comparison import comparison_of
from coda_cli.simulate.verdict import verdict
from coda_sim.runs import RunOrder, RunOutcome, run_order
from coda_sim.traces import Selection
from coda_sim.workload import WorkloadSource, shape_from_text

Result = TypeVar("Result")

CLUSTER: Final = "9x8x28,27x4x28"  # 0.45 of the generated month's, so that jobs wait
DAYS: Final = (12.0, 14.0)  # of that month; the first fills the cluster, the second is shown
POLICIES: Final[Mapping[str, str]] = {
    "fifo-skip": "first come, first served; a job that does not fit is passed over",
    "coda": "jobs have the cores that their GPUs need, and CPU jobs borrow the rest",
}
_DAY_S = 86400.0
_ROWS = 4


def show_day_beside(console: Console, work: Callable[[], Result]) -> Result:
    """Do the work, show the day as soon as it is simulated, and return what the work returned once both are done."""
    day = Thread(target=_show_day, args=(console,), daemon=True)  # so that Ctrl-C does not wait for it
    day.start()
    result = work()
    day.join()
    return result


def _show_day(console: Console) -> None:
    outcomes = [run_order(_order(policy)) for policy in POLICIES]
    lines = day_lines(outcomes, ascii_only=console.options.ascii_only)
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _order(policy: str) -> RunOrder:
    source = WorkloadSource(selection=Selection(window_days=DAYS))
    return RunOrder(source=source, cluster=CLUSTER, profiles="paper", policy=policy, seed=1, warmup_s=_DAY_S)


def day_lines(outcomes: Sequence[RunOutcome], *, ascii_only: bool = False) -> Iterator[str]:
    """Yield what is told of a day: how many GPU jobs wait under each policy, then the comparison in words."""
    shape = shape_from_text(CLUSTER)
    yield f"A day of a generated month, simulated on {shape.gpus} GPUs: the same jobs under two policies."
    yield "The cluster is less than half as large as that month's, so that jobs wait."
    yield "How fast a job runs with how many cores is assumed, by curves of published models."
    yield "How many GPU jobs wait, over the hours of the day:"
    top = max(1.0, *(max(outcome.series.gpu_jobs_waiting) for outcome in outcomes))
    for outcome in outcomes:
        waiting = outcome.series.gpu_jobs_waiting
        yield ""
        yield f"  {outcome.result.policy}: {POLICIES[outcome.result.policy]}"
        yield from bar_chart(waiting, top=top, rows=_ROWS, ascii_only=ascii_only)
        yield hours_line(len(waiting), len(waiting) * outcome.series.bucket_s / 3600, every=6)
    yield ""
    yield from verdict(comparison_of([outcome.result for outcome in outcomes]))
    yield ""
