"""What it takes to find out why a job failed: CPU time for one log of a mebibyte, of every kind in `rig.logs`.

In one process, rules loaded before; the least of a few runs, so that what else runs on the machine does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final

from coda.diagnosis import RankLog, classify
from rig.asking import ask, tell
from rig.logs import KINDS
from rig.results import Answer, Row

RUNS: Final = 5
BUDGET: Final = "<= 50"


async def answer(options: argparse.Namespace) -> Answer:
    """One kind of log after the other."""
    classify([RankLog(log=b"")])
    spent_ms: dict[str, float] = {}
    for kind, log in KINDS.items():
        spent_ms[kind] = cpu_ms(log, runs=1 if options.quick else RUNS)
        tell(f"{kind:<32} {spent_ms[kind]:6.1f} ms")
        await asyncio.sleep(0)  # so that it can be interrupted
    return Answer(question="classifying", rows=rows_of(spent_ms), detail={"cpu_ms": spent_ms})


def cpu_ms(log: Callable[[], bytes], *, runs: int) -> float:
    """Return the least CPU time that a classification of a log takes."""
    text, spent_s = log(), list[float]()
    for _ in range(runs):
        began_s = time.process_time()
        classify([RankLog(log=text)])
        spent_s.append(time.process_time() - began_s)
    return 1000 * min(spent_s)


def rows_of(spent_ms: dict[str, float]) -> tuple[Row, ...]:
    """A row for what jobs print, and one for the kind that takes longest."""
    slowest = max(spent_ms, key=lambda kind: spent_ms[kind])
    return (
        Row(name="log of training, 1 MiB: CPU", value=spent_ms["progress"], unit="ms", budget=BUDGET),
        Row(name=f"slowest log, 1 MiB ({slowest}): CPU", value=spent_ms[slowest], unit="ms", budget=BUDGET),
    )


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer))
