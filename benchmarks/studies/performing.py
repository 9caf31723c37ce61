"""Performs the cells that the store lacks, several at once, each in a process of its own, and says how far it is."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean

from coda.errors import CodaError
from coda.wording import counted
from coda_sim.durations import duration_from_seconds
from studies.cells import Cell, measured
from studies.store import Store

Tell = Callable[[str], object]


@dataclass(slots=True)
class Progress:
    """What is done, and when the rest will be: from the times that cells took, last time or in this run."""

    left: list[Cell]
    at_once: int
    tell: Tell
    took_by_name: dict[str, float]
    done: int = 0
    all: int = field(init=False)

    def __post_init__(self) -> None:
        self.all = len(self.left)

    def ended(self, cell: Cell, took_s: float, failure: str | None) -> None:
        """Say that a cell ended, and how long the rest will take."""
        self.left.remove(cell)
        self.done += 1
        if failure is None:
            self.took_by_name[cell.name] = took_s
        how = f"failed: {failure}" if failure else duration_from_seconds(took_s)
        self.tell(f"[{self.done}/{self.all}] {cell.name}: {how}{self.rest()}")

    def rest(self) -> str:
        """The time left, in words; empty if nothing is left or no cell ever ended."""
        if not self.left or not self.took_by_name:
            return ""
        usual_s = fmean(self.took_by_name.values())
        left_s = sum(self.took_by_name.get(cell.name, usual_s) for cell in self.left) / self.at_once
        return f"; about {duration_from_seconds(max(1.0, left_s))} left"


def perform(cell_by_key: Mapping[str, Cell], store: Store, at_once: int, tell: Tell) -> dict[str, str]:
    """Perform what the store lacks; return the sentence of each cell that failed, by key. The others go on."""
    missing = {key: cell for key, cell in cell_by_key.items() if store.get(key) is None}
    kept = len(cell_by_key) - len(missing)
    progress = Progress(list(missing.values()), at_once, tell, store.times())
    tell(f"{counted(len(missing), 'simulation')} to run, {kept} kept from before{progress.rest()}")
    if at_once == 1:
        return _in_turn(missing, store, progress)
    return _at_once(missing, store, at_once, progress)


def _in_turn(missing: Mapping[str, Cell], store: Store, progress: Progress) -> dict[str, str]:
    failures: dict[str, str] = {}
    for key, cell in missing.items():
        began_s = time.monotonic()
        failure = _performed(key, cell, store)
        _note(key, cell, time.monotonic() - began_s, failure, store, progress, failures)
    return failures


def _at_once(missing: Mapping[str, Cell], store: Store, at_once: int, progress: Progress) -> dict[str, str]:
    """A process per cell: what one leaves behind in memory, or does to itself, harms no other."""
    context = multiprocessing.get_context("spawn")
    failures: dict[str, str] = {}
    waiting = list(missing.items())[::-1]
    running: dict[int, tuple[BaseProcess, str, Cell, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                key, cell = waiting.pop()
                begun: BaseProcess = context.Process(target=_perform_there, args=(key, cell, store))
                begun.start()
                running[begun.sentinel] = (begun, key, cell, time.monotonic())
            for sentinel in wait(list(running)):
                assert isinstance(sentinel, int)
                process, key, cell, began_s = running.pop(sentinel)
                process.join()
                failure = None if store.get(key) is not None else _failure_of(process, key, store)
                _note(key, cell, time.monotonic() - began_s, failure, store, progress, failures)
    finally:
        for process, *_ in running.values():
            process.terminate()
    return failures


def _note(
    key: str, cell: Cell, took_s: float, failure: str | None, store: Store, progress: Progress, failures: dict[str, str]
) -> None:
    if failure is None:
        store.put_time(cell.name, took_s)
    else:
        failures[key] = f"{cell.name}: {failure}"
    progress.ended(cell, took_s, failure)


def _performed(key: str, cell: Cell, store: Store) -> str | None:
    """Perform a cell and keep what it measured; return why it failed, if it did."""
    try:
        store.put(key, cell.name, measured(cell))
    except CodaError as error:
        return str(error)
    except Exception as error:  # a bug in one policy must not cost the other tables
        return f"{type(error).__name__}: {error}"
    return None


def _perform_there(key: str, cell: Cell, store: Store) -> None:
    failure = _performed(key, cell, store)
    if failure is not None:
        _failure_file(key, store).write_text(failure, encoding="utf-8")


def _failure_of(process: BaseProcess, key: str, store: Store) -> str:
    file = _failure_file(key, store)
    if not file.exists():
        return f"its process ended with exit code {process.exitcode}"
    failure = file.read_text(encoding="utf-8")
    file.unlink()
    return failure


def _failure_file(key: str, store: Store) -> Path:
    return store.folder / f"{key}.failed"
