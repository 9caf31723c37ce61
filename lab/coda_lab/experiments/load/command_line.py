"""The shared part of command lines: refusing bad options in one sentence, and the exit codes."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from rich.console import Console

from coda.errors import CodaError, InvalidInput
from coda_lab.experiments.load.display import Display
from coda_lab.kubelets.nodes import NodeSpec, node_specs

T = TypeVar("T")

LEAST_CPUS: Final = 16  # of a node: a rank with all its GPUs and a foreign pod beside it


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InvalidInput instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Refuse."""
        raise InvalidInput(f"{message}; see --help")


def equal_nodes(shape: str) -> tuple[str, tuple[NodeSpec, ...]]:
    """The nodes of `--nodes`, which may be only their number. Raises InvalidInput."""
    nodes = f"{shape}x8x48" if shape.isdigit() else shape
    specs = node_specs(nodes, racks=1)
    if "," in nodes or specs[0].gpus < 1 or specs[0].cpus < LEAST_CPUS:
        raise InvalidInput(
            f"--nodes {nodes}: give equal nodes with GPUs and at least {LEAST_CPUS} cores, such as 100x8x48"
        )
    return nodes, specs


def check_writable(*paths: Path | None) -> None:
    """Raise InvalidInput for a path that cannot be written."""
    for path in paths:
        folder = path.absolute().parent if path is not None else Path.cwd()
        if not os.access(folder, os.W_OK):
            raise InvalidInput(f"{path} cannot be written: {folder} is no folder that you may write to")


def shown(work: Callable[[Display], Coroutine[Any, Any, T]], unit: str) -> T:
    """Run it in a loop of its own, with a display; SIGTERM cancels it."""

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        display = Display(Console(soft_wrap=True), unit)
        async with display.shown():
            return await work(display)

    return asyncio.run(run())


def exit_code_of(name: str, command: Callable[[], bool]) -> int:
    """Run a command that returns whether it passed; report a failure to run in one sentence on stderr."""
    try:
        return 0 if command() else 1
    except BaseExceptionGroup as failures:
        expected, _ = failures.split((CodaError, OSError))
        if expected is None:
            raise
        return _say(name, str(_first(expected)), 1)
    except InvalidInput as error:
        return _say(name, str(error), 2)
    except (CodaError, OSError) as error:
        return _say(name, str(error), 1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _say(name, "interrupted; nothing is left behind", 130)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def _say(name: str, sentence: str, code: int) -> int:
    console = Console(stderr=True)
    console.print(f"{name}: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
    return code
