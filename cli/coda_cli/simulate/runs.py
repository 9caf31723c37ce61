"""Performs runs, one after the other or several at once in their own processes, and shows how far they are."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Container, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coda_cli.progress import LINE_EVERY_S
from coda_sim.runs import RunOrder, RunOutcome, run_order

Told = SimpleQueue[tuple[int, int, int]]
"""Number of the run, its jobs that ended, all its jobs: sent by the processes that perform runs."""

_LOOK_AFTER_S = 0.2


class Display:
    """Jobs simulated so far, of all runs: on a terminal a bar with rate and time left, else a line every ten s."""

    def __init__(self, console: Console, orders: Sequence[RunOrder]) -> None:
        self._console = console
        self._orders = orders
        self._ended = [0] * len(orders)
        self._jobs = [0] * len(orders)
        self._began_s = self._told_s = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
                console=console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task("simulating", total=None, rate="")

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, index: int, ended: int, jobs: int) -> None:
        """Show that run `index` has simulated `ended` of its `jobs`."""
        self._ended[index], self._jobs[index] = ended, jobs
        ended, known = sum(self._ended), [jobs for jobs in self._jobs if jobs]
        total = sum(known) + round(sum(known) / len(known)) * (len(self._jobs) - len(known)) if known else 0
        now_s = time.monotonic()
        rate = f"{ended / max(1e-3, now_s - self._began_s):,.0f} jobs/s"
        if self._bar is not None:
            self._bar.update(self._task, total=total, completed=ended, rate=rate)
        elif now_s - self._told_s >= LINE_EVERY_S:
            self._told_s = now_s
            left_s = (now_s - self._began_s) * (total - ended) / max(1, ended)
            self._console.print(
                f"{ended:,} of {total:,} jobs simulated, {rate}, about {left_s:.0f} s left", highlight=False
            )


def performed(orders: Sequence[RunOrder], at_once: int, console: Console) -> list[RunOutcome]:
    """Return the outcomes in the order of `orders`, with `at_once` runs at a time. Raises what a run raises."""
    for order in orders:
        if order.records is not None:
            order.records.parent.mkdir(parents=True, exist_ok=True)
    with Display(console, orders) as display:
        if at_once == 1 or len(orders) == 1:
            return [run_order(order, partial(display.tell, index)) for index, order in enumerate(orders)]
        return _performed_at_once(orders, at_once, display)


def _performed_at_once(orders: Sequence[RunOrder], at_once: int, display: Display) -> list[RunOutcome]:
    context = multiprocessing.get_context("spawn")
    told: Told = context.SimpleQueue()
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        min(at_once, len(orders)), mp_context=context, initializer=_remember, initargs=(told,), max_tasks_per_child=1
    ) as pool:
        try:
            futures = [pool.submit(_perform_there, index, order) for index, order in enumerate(orders)]
            while wait(futures, timeout=_LOOK_AFTER_S).not_done:
                while not told.empty():
                    display.tell(*told.get())
        except BaseException:
            _end(others)
            raise
        return [future.result() for future in futures]


def _end(others: Container[BaseProcess]) -> None:
    """End all children but `others`, and so their pool: leaving it would wait until each has performed its run."""
    while children := [child for child in multiprocessing.active_children() if child not in others]:
        for child in children:
            child.terminate()
        for child in children:
            child.join(_LOOK_AFTER_S)


_told: Told | None = None  # of a process that performs runs


def _remember(told: Told) -> None:
    global _told
    _told = told


def _perform_there(index: int, order: RunOrder) -> RunOutcome:
    return run_order(order, lambda ended, jobs: _told.put((index, ended, jobs)) if _told else None)
