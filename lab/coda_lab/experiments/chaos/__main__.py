"""`python -m coda_lab.experiments.chaos`: options in, report out. Exit codes: see
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
from coda_lab.experiments.chaos.accidents import Accident, Mishap
from coda_lab.experiments.chaos.faults import BUDGET_S, GIVE_UP_S
from coda_lab.experiments.chaos.report import Outcome, schedule_json
from coda_lab.experiments.chaos.run import Audience, Options, run
from coda_lab.experiments.chaos.schedule import Fault
from coda_lab.experiments.load.command_line import Parser, check_writable, equal_nodes, exit_code_of, shown
from coda_lab.experiments.load.display import Display

MOST_FAULTS = 10_000
WORDS = {each.name.lower().replace("_", "-"): each for each in Accident}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = Parser(prog="python -m coda_lab.experiments.chaos", description="Kill parts of a local cluster under load.")
    found.add_argument("--kills", type=int, default=50, help="SIGKILLs, over all parts (default 50)")
    found.add_argument("--stops", type=int, help="SIGSTOPs for longer than a Lease (default: a fifth of the kills)")
    found.add_argument("--cuts", type=int, help="connections dropped, delayed, reset (default: a fifth of the kills)")
    found.add_argument("--accidents", type=int, default=0, help="reboots, lost nodes, wrong clocks, ... (default 0)")
    found.add_argument("--only", default="", help=f"accidents of these kinds alone: {', '.join(WORDS)}")
    found.add_argument("--lending", action="store_true", help="CPU jobs borrow cores, and ArrayQuotas change")
    found.add_argument("--sharing", action="store_true", help="jobs of all service classes: some have seats on GPUs")
    found.add_argument("--tenants", action="store_true", help="a tree of tenants that borrow GPUs, and notice of stops")
    found.add_argument("--tuning", action="store_true", help="the cores of jobs change while they run")
    found.add_argument(
        "--agents", type=int, default=0, help="agents, each on an emulated machine, tune cores (default 0)"
    )
    found.add_argument("--seed", type=int, default=1, help="same seed, same schedule and same jobs (default 1)")
    found.add_argument("--nodes", default="100x8x48", help="nodes x GPUs x cores, or nodes alone (default 100x8x48)")
    found.add_argument("--out", type=Path, help="file for the report, JSON")
    found.add_argument("--logs", type=Path, help="folder for the logs of all parts")
    found.add_argument("--drain", type=float, default=300.0, help="seconds for what is open at the end (default 300)")
    found.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of a fail-over (default 15)")
    found.add_argument("--plan", action="store_true", help="print the schedule of faults as JSON, run nothing")
    return found


def options_from(words: Sequence[str] | None) -> tuple[Options, argparse.Namespace]:
    """The options, checked before anything is started. Raises InvalidInput."""
    given = parser().parse_args(words)
    fifth = -(-max(0, given.kills) // 5)
    options = Options(
        seed=given.seed,
        kills=given.kills,
        stops=fifth if given.stops is None else given.stops,
        cuts=fifth if given.cuts is None else given.cuts,
        accidents=given.accidents,
        only=tuple(_accident(word) for word in filter(None, given.only.split(","))),
        lending=given.lending,
        sharing=given.sharing,
        tenants=given.tenants,
        tuning=given.tuning,
        agents=given.agents,
        nodes=equal_nodes(given.nodes)[0],
        drain_s=given.drain,
        budget_s=given.budget,
        logs=given.logs,
    )
    for name in ("kills", "stops", "cuts", "accidents"):
        if not 0 <= getattr(options, name) <= MOST_FAULTS:
            raise InvalidInput(f"--{name} {getattr(options, name)}: give 0 to {MOST_FAULTS}")
    if not 1 <= options.drain_s <= 86_400:
        raise InvalidInput(f"--drain {options.drain_s:g}: give 1 to 86400 seconds")
    if not 1 <= options.budget_s <= GIVE_UP_S:
        raise InvalidInput(f"--budget {options.budget_s:g}: give 1 to {GIVE_UP_S:g} seconds")
    check_writable(given.out, given.logs)
    return options, given


def _accident(word: str) -> Accident:
    if word not in WORDS:
        raise InvalidInput(f"--only {word}: there are {', '.join(WORDS)}")
    return WORDS[word]


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    return exit_code_of("chaos", partial(_passes, words))


def _passes(words: Sequence[str] | None) -> bool:
    options, given = options_from(words)
    if given.plan:
        print(json.dumps(schedule_json(options.faults, options.mishaps), indent=1))  # noqa: T201 - the requested report
        return True

    async def work(display: Display) -> Outcome:
        def told(fault: Fault, what: str) -> None:
            joined = "+" if fault.joins else " "
            display.say(f"{joined}#{fault.number:<3} {fault.target.value:16} {what}")

        def happened(mishap: Mishap, what: str) -> None:
            display.say(f" !{mishap.number:<3} {what}")

        audience = Audience(
            step=display.say, fault=told, accident=happened, scene=lambda scene: display.show(scene.standing)
        )
        return await run(options, audience)

    outcome = shown(work, "faults")
    report = outcome.as_json()
    if given.out is not None:
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    _summarise(outcome, Console(soft_wrap=True))
    return bool(report["passed"])


def _summarise(outcome: Outcome, console: Console) -> None:
    report = outcome.as_json()
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False)
    for part, times in report["recovery_by_part"].items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in report["faults_by_part"][part].items())
        line = f"{part:15} {kinds:45} recovery median {times['median_s']} s, slowest {times['slowest_s']} s"
        console.print(line, markup=False, highlight=False)
    for accident in report["accidents"]:
        line = f"{accident['what']}: recovery {accident['recovery_s']} s"
        console.print(line, markup=False, highlight=False)
    account = report["jobs"]
    console.print(
        f"Jobs: {account['submitted']} submitted, {account['succeeded']} succeeded, {account['failed']} failed, "
        f"{account['deleted_by_the_test']} deleted by the test, {account['lost']} lost, {account['stuck']} stuck; "
        f"{account['attempts']} attempts, {account['disruptions']} disrupted.",
        markup=False,
        highlight=False,
    )
    if (lent := outcome.lent) is not None:
        console.print(
            f"CPU jobs: {lent.running} of {lent.cpu_jobs} run; {counted(lent.evictions, 'eviction')} in the last hour, "
            f"{counted(lent.quota_edits, 'edit')} of an ArrayQuota.",
            markup=False,
            highlight=False,
        )
    if outcome.stops.orders:
        kinds = ", ".join(f"{count} {cause}" for cause, count in report["stops"]["orders"].items())
        slowest_s = report["stops"]["slowest_start_s"]
        line = f"Stops for others: {kinds}; the slowest start afterwards took {slowest_s} s."
        console.print(line, markup=False, highlight=False)
    if outcome.wishes is not None and outcome.wishes.ends:
        ends = ", ".join(f"{count} {how}" for how, count in report["wishes"].items())
        console.print(f"Wishes for cores: {ends}.", markup=False, highlight=False)
    if (shared := outcome.shared) is not None:
        line = (
            f"Shared GPUs: {counted(shared.owners, 'guaranteed job')} beside others for {shared.shared_s:.0f} s, "
            f"{shared.lost_share:.1%} slower; {counted(shared.crashes, 'agent')} killed, and at most "
            f"{shared.longest_unwatched_s:.0f} s slow without one."
        )
        console.print(line, markup=False, highlight=False)
    verdict = "passed" if report["passed"] else counted(len(report["problems"]), "problem")
    console.print(f"Seed {outcome.seed}: {verdict}. {outcome.check.summary()}.", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
