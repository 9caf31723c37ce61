"""`python -m coda_lab.chaos`: options in, report out. Exit code 0: passed, 1: not, 2: bad options, 130: interrupted."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from coda.errors import CodaError, InvalidInput
from coda_lab.chaos.display import Display
from coda_lab.chaos.report import Outcome, schedule_json
from coda_lab.chaos.running import Options, run

MOST_FAULTS = 10_000
LEAST_CPUS = 16  # of a node: a rank with all of its GPUs and a foreign pod beside it


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidInput(f"{message}; see --help")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = _Parser(prog="python -m coda_lab.chaos", description="Kill parts of a local cluster under load.")
    found.add_argument("--kills", type=int, default=50, help="SIGKILLs, over all parts (default 50)")
    found.add_argument("--stops", type=int, help="SIGSTOPs for longer than a Lease (default: a fifth of the kills)")
    found.add_argument("--cuts", type=int, help="connections dropped, delayed, reset (default: a fifth of the kills)")
    found.add_argument("--seed", type=int, default=1, help="same seed, same schedule and same jobs (default 1)")
    found.add_argument("--nodes", default="100x8x48", help="nodes x GPUs x cores, or nodes alone (default 100x8x48)")
    found.add_argument("--out", type=Path, help="file for the report, JSON")
    found.add_argument("--logs", type=Path, help="folder for the logs of all parts")
    found.add_argument("--drain", type=float, default=300.0, help="seconds for what is open at the end (default 300)")
    found.add_argument("--plan", action="store_true", help="print the schedule of faults as JSON, run nothing")
    return found


def options_from(words: Sequence[str] | None) -> tuple[Options, argparse.Namespace]:
    """The options, judged before anything is started. Raises InvalidInput."""
    given = parser().parse_args(words)
    fifth = -(-max(0, given.kills) // 5)
    options = Options(
        seed=given.seed,
        kills=given.kills,
        stops=fifth if given.stops is None else given.stops,
        cuts=fifth if given.cuts is None else given.cuts,
        nodes=f"{given.nodes}x8x48" if given.nodes.isdigit() else given.nodes,
        drain_s=given.drain,
        logs=given.logs,
    )
    for name in ("kills", "stops", "cuts"):
        if not 0 <= getattr(options, name) <= MOST_FAULTS:
            raise InvalidInput(f"--{name} {getattr(options, name)}: give 0 to {MOST_FAULTS}")
    if not 1 <= options.drain_s <= 86_400:
        raise InvalidInput(f"--drain {options.drain_s:g}: give 1 to 86400 seconds")
    specs = options.specs
    if "," in options.nodes or specs[0].gpus < 1 or specs[0].cpus < LEAST_CPUS:
        raise InvalidInput(
            f"--nodes {options.nodes}: give equal nodes with GPUs and at least {LEAST_CPUS} cores, such as 100x8x48"
        )
    for path in (given.out, given.logs):
        folder = path.absolute().parent if path is not None else Path.cwd()
        if not os.access(folder, os.W_OK):
            raise InvalidInput(f"{path} cannot be written: {folder} is no folder that you may write to")
    return options, given


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    errors = Console(stderr=True)
    try:
        options, given = options_from(words)
        if given.plan:
            print(json.dumps(schedule_json(options.faults), indent=1))  # noqa: T201 - what was asked for
            return 0
        outcome = asyncio.run(_run(options))
        report = outcome.as_json()
        if given.out is not None:
            given.out.write_text(json.dumps(report, indent=1) + "\n")
        _summarise(outcome, Console(soft_wrap=True))
        return 0 if report["passed"] else 1
    except BaseExceptionGroup as failures:
        expected, _ = failures.split((CodaError, OSError))
        if expected is None:
            raise
        return _say(errors, str(_first(expected)), 1)
    except InvalidInput as error:
        return _say(errors, str(error), 2)
    except (CodaError, OSError) as error:
        return _say(errors, str(error), 1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _say(errors, "interrupted; nothing is left behind", 130)


async def _run(options: Options) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    display = Display(Console(soft_wrap=True))
    async with display.shown():
        return await run(options, display.audience)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def _summarise(outcome: Outcome, console: Console) -> None:
    report = outcome.as_json()
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False)
    for part, times in report["recovery_by_part"].items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in report["faults_by_part"][part].items())
        line = f"{part:15} {kinds:45} recovery median {times['median_s']} s, slowest {times['slowest_s']} s"
        console.print(line, markup=False, highlight=False)
    account = report["jobs"]
    console.print(
        f"Jobs: {account['submitted']} submitted, {account['succeeded']} succeeded, {account['failed']} failed, "
        f"{account['deleted_by_the_test']} deleted by the test, {account['lost']} lost, {account['stuck']} stuck; "
        f"{account['attempts']} attempts, {account['disruptions']} disrupted.",
        markup=False,
        highlight=False,
    )
    verdict = "passed" if report["passed"] else f"{len(report['problems'])} problems"
    console.print(f"Seed {outcome.seed}: {verdict}. {outcome.check.summary()}.", markup=False, highlight=False)


def _say(console: Console, sentence: str, code: int) -> int:
    console.print(f"chaos: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
