"""`python -m coda_lab.experiments.fuzz`: options in, report out. Exit code 0: passed, 1: not, 2: bad options,
130: interrupted."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from coda.errors import CodaError
from coda_lab.experiments.fuzz.report import Options
from coda_lab.experiments.fuzz.run import run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m coda_lab.experiments.fuzz", description="Malformed requests for an extender."
    )
    found.add_argument("--count", type=int, default=100_000, help="requests (default 100000)")
    found.add_argument("--seed", type=int, default=1, help="same seed, same requests (default 1)")
    found.add_argument("--connections", type=int, default=500, help="held open meanwhile (default 500)")
    found.add_argument("--out", type=Path, help="file for the report, JSON")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    given = parser().parse_args(words)
    if given.count < 1 or not 0 <= given.connections <= 10_000:
        return _say("--count must be at least 1, --connections 0 to 10000", 2)
    options = Options(count=given.count, seed=given.seed, connections=given.connections)
    try:
        report = asyncio.run(run(options, tell=lambda step: print(step, flush=True))).as_json()  # noqa: T201
        if given.out is not None:
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    except (CodaError, OSError) as error:
        return _say(str(error), 1)
    except KeyboardInterrupt:
        return _say("interrupted; nothing is left behind", 130)
    print(json.dumps(report, indent=1))  # noqa: T201 - what was asked for
    return 0 if report["passed"] else 1


def _say(sentence: str, code: int) -> int:
    print(f"fuzz: {sentence}", file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
