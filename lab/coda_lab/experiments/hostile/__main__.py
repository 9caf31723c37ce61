"""`python -m coda_lab.experiments.hostile`: options in, report out. Exit codes: see
`coda_lab.experiments.load.command_line`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coda.errors import InvalidInput
from coda.wording import counted
from coda_lab.experiments.hostile.generator import WAYS
from coda_lab.experiments.hostile.report import Options, Outcome
from coda_lab.experiments.hostile.run import run
from coda_lab.experiments.load.command_line import Parser, check_writable, equal_nodes, exit_code_of

MOST = 100_000


def parser() -> Parser:
    """The command line."""
    found = Parser(
        prog="python -m coda_lab.experiments.hostile",
        description="Hostile objects beside honest jobs on a local cluster.",
    )
    found.add_argument("--count", type=int, default=2000, help="objects to be stored (default 2000)")
    found.add_argument("--jobs", type=int, default=100, help="honest jobs beside them (default 100)")
    found.add_argument("--rate", type=float, default=6.0, help="objects per second (default 6)")
    found.add_argument("--seed", type=int, default=1, help="same seed, same objects and jobs (default 1)")
    found.add_argument(
        "--nodes", default="8x8x48", help="nodes x GPUs x cores; half are the honest jobs' (default 8x8x48)"
    )
    found.add_argument(
        "--limit", type=float, default=240.0, help="seconds until the jobs must have ended (default 240)"
    )
    found.add_argument("--classes", default="", help="only these, for example deep,forged (default all)")
    found.add_argument("--out", type=Path, help="file for the report, JSON")
    found.add_argument("--logs", type=Path, help="folder for the logs of all parts")
    return found


def options_from(words: Sequence[str] | None) -> tuple[Options, Path | None]:
    """The options, and where the report goes; checked before anything is started. Raises InvalidInput."""
    given = parser().parse_args(words)
    nodes, specs = equal_nodes(given.nodes)
    for name in ("count", "jobs"):
        if not 1 <= getattr(given, name) <= MOST:
            raise InvalidInput(f"--{name} {getattr(given, name)}: give 1 to {MOST}")
    if len(specs) < 4:
        raise InvalidInput(f"--nodes {nodes}: give at least 4, so that each side has 2")
    if not 0.1 <= given.rate <= 1000:
        raise InvalidInput(f"--rate {given.rate:g}: give 0.1 to 1000 objects per second")
    if not 1 <= given.limit <= 86_400:
        raise InvalidInput(f"--limit {given.limit:g}: give 1 to 86400 seconds")
    ways = frozenset(filter(None, given.classes.split(",")))
    if unknown := sorted(ways - WAYS):
        raise InvalidInput(f"--classes {unknown[0]}: there are {', '.join(sorted(WAYS))}")
    check_writable(given.out, given.logs)
    options = Options(
        count=given.count,
        seed=given.seed,
        jobs=given.jobs,
        rate=given.rate,
        nodes=nodes,
        limit_s=given.limit,
        ways=ways,
        logs=given.logs,
    )
    return options, given.out


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    return exit_code_of("hostile", partial(_passes, words))


def _passes(words: Sequence[str] | None) -> bool:
    options, out = options_from(words)
    console = Console(soft_wrap=True)
    began_s = time.monotonic()
    logging.getLogger("coda_kube").setLevel(logging.ERROR)

    def tell(what: str) -> None:
        console.print(f"{time.monotonic() - began_s:6.1f} s  {what.strip()}", markup=False, highlight=False)

    outcome = asyncio.run(run(options, tell))
    report = outcome.as_json()
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n")
    _summarise(outcome, console)
    return bool(report["passed"])


def _summarise(outcome: Outcome, console: Console) -> None:
    report = outcome.as_json()
    table = Table("class", "stored", "refused", box=None, pad_edge=False)
    objects = report["objects"]
    for way in sorted({*objects["stored_by_class"], *objects["refused_by_class"]}):
        table.add_row(way, str(objects["stored_by_class"].get(way, 0)), str(objects["refused_by_class"].get(way, 0)))
    console.print(table)
    memory = Table("MiB", "start", "harmless", "before", "hostile", box=None, pad_edge=False)
    for part, sizes in report["memory_mib"].items():
        memory.add_row(part, *(f"{size:.0f}" for size in sizes))
    console.print(memory)
    jobs, cycles = report["honest_jobs"], report["cycles"]
    waited = jobs["waited_mean_s"]
    lines = [
        f"Objects: {objects['stored']} of {objects['kinds']} kinds stored, {objects['mib']:g} MiB.",
        f"Honest jobs: {jobs['count']}; they start {jobs['delay_median_s']} s later (median), at most "
        f"{jobs['delay_most_s']} s. Mean wait {waited['control']} s, then {waited['attack']} s.",
        f"Planning cycles: mean {cycles['control']['mean_ms']} ms, then {cycles['attack']['mean_ms']} ms.",
        *(f"problem: {problem}" for problem in report["problems"]),
    ]
    verdict = "passed" if report["passed"] else counted(len(report["problems"]), "problem")
    for line in (*lines, f"Seed {report['seed']}: {verdict} in {report['took_s']} s."):
        console.print(line, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
