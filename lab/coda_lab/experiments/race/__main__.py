"""`python -m coda_lab.experiments.race`: options in, report out. Exit codes: see
`coda_lab.experiments.load.command_line`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from coda.errors import InvalidInput
from coda.wording import counted
from coda_lab.experiments.load.command_line import Parser, check_writable, equal_nodes, exit_code_of, shown
from coda_lab.experiments.load.display import Display
from coda_lab.experiments.race.report import Outcome, Schedulers
from coda_lab.experiments.race.run import Audience, Options, run

MOST_GANGS = 10_000
MOST_FOREIGN_PER_GANG = 1000
FOREIGN_PER_GANG = 12  # about as many as end beside a gang at 150 % load

_FOREIGN = f"foreign pods for each gang, at most (default {FOREIGN_PER_GANG})"
_SCHEDULERS = "who binds the foreign pods: the kube-scheduler that asks Coda, or one of their own (default one)"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = Parser(
        prog="python -m coda_lab.experiments.race", description="Gangs race foreign pods for the same nodes."
    )
    found.add_argument("--gangs", type=int, default=200, help="gangs of 1 to 64 pods (default 200)")
    found.add_argument("--foreign", type=int, default=FOREIGN_PER_GANG, help=_FOREIGN)
    found.add_argument("--longest-run", type=float, default=20.0, help="seconds the longest pod runs (default 20)")
    found.add_argument("--schedulers", choices=[each.value for each in Schedulers], default="one", help=_SCHEDULERS)
    found.add_argument("--seed", type=int, default=1, help="same seed, same gangs and foreign pods (default 1)")
    found.add_argument("--nodes", default="100x8x48", help="nodes x GPUs x cores, or nodes alone (default 100x8x48)")
    found.add_argument("--limit", type=float, default=900.0, help="seconds until all must have ended (default 900)")
    found.add_argument("--out", type=Path, help="file for the report, JSON")
    found.add_argument("--logs", type=Path, help="folder for the logs of all parts")
    return found


def options_from(words: Sequence[str] | None) -> tuple[Options, Path | None]:
    """The options, and where the report goes; checked before anything is started. Raises InvalidInput."""
    given = parser().parse_args(words)
    options = Options(
        seed=given.seed,
        gangs=given.gangs,
        foreign_per_gang=given.foreign,
        nodes=equal_nodes(given.nodes)[0],
        longest_run_s=given.longest_run,
        schedulers=Schedulers(given.schedulers),
        limit_s=given.limit,
        logs=given.logs,
    )
    if not 1 <= options.gangs <= MOST_GANGS:
        raise InvalidInput(f"--gangs {options.gangs}: give 1 to {MOST_GANGS}")
    if not 0 <= options.foreign_per_gang <= MOST_FOREIGN_PER_GANG:
        raise InvalidInput(f"--foreign {options.foreign_per_gang}: give 0 to {MOST_FOREIGN_PER_GANG}")
    if not 0.1 <= options.longest_run_s <= 86_400:
        raise InvalidInput(f"--longest-run {options.longest_run_s:g}: give 0.1 to 86400 seconds")
    if not 1 <= options.limit_s <= 86_400:
        raise InvalidInput(f"--limit {options.limit_s:g}: give 1 to 86400 seconds")
    check_writable(given.out, given.logs)
    return options, given.out


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    return exit_code_of("race", partial(_passes, words))


def _passes(words: Sequence[str] | None) -> bool:
    options, out = options_from(words)

    async def work(display: Display) -> Outcome:
        return await run(options, Audience(step=display.say, standing=display.show))

    outcome = shown(work, "gangs")
    report = outcome.as_json()
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n")
    _summarise(outcome, Console(soft_wrap=True))
    return bool(report["passed"])


def _summarise(outcome: Outcome, console: Console) -> None:
    report = outcome.as_json()
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False)
    gangs, attempts, refused = report["gangs"], report["attempts"], report["refused_pods"]
    longest = attempts["longest_partial_gang"]
    partial_s = 0.0 if longest is None else longest["partial_s"]
    lines = (
        f"Gangs: {gangs['submitted']} submitted ({gangs['pods']} pods), {gangs['succeeded']} succeeded, "
        f"{gangs['stuck']} stuck, {gangs['lost']} lost.",
        f"Attempts: {attempts['with_pods']}, {attempts['whole']} whole, {attempts['rolled_back']} rolled back "
        f"{gangs['roll_backs_by_reason']}, the longest partial gang {partial_s} s.",
        f"Refused by kubelets: of gangs {refused['gangs']}, foreign {refused['foreign']}.",
        f"Foreign pods: {report['foreign_pods']['submitted']} submitted.",
    )
    for line in lines:
        console.print(line, markup=False, highlight=False)
    verdict = "passed" if report["passed"] else counted(len(report["problems"]), "problem")
    check = f"{len(report['breaches'])} breaches, {report['double_bookings_seen']} double bookings seen"
    console.print(
        f"Seed {outcome.seed}, {outcome.schedulers.value} schedulers: {verdict} in {report['duration_s']} s. {check}.",
        markup=False,
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
