"""The command line that every benchmark has, and what happens around its answer."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from coda.errors import CodaError
from rig.results import Answer

PAIRS = 5

Answering = Callable[[argparse.Namespace], Awaitable[Answer]]


def ask(
    description: str | None, answering: Answering, *, more: Callable[[argparse.ArgumentParser], None] | None = None
) -> int:
    """Read the options, find the answer and hand it in; the exit code. `more` adds options of its own."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small cluster and one pair: does it work at all")
    parser.add_argument("--pairs", type=positive, help=f"how often both arms run, in turns (default {PAIRS})")
    parser.add_argument("--out", type=Path, help="file for the answer, JSON (default: print it)")
    if more is not None:
        more(parser)
    options = parser.parse_args()
    options.pairs = options.pairs or (1 if options.quick else PAIRS)
    try:
        answer = asyncio.run(_interruptible(answering, options))
    except CodaError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"{Path(sys.argv[0]).stem}: interrupted; nothing is left behind", file=sys.stderr)
        return 130
    if options.out is None:
        print(answer.as_json().decode())
    else:
        answer.write(options.out)
    return 0


def tell(sentence: str) -> None:
    """Say to whoever waits how far it is."""
    print(sentence, file=sys.stderr, flush=True)


def orders(pairs: int, arms: Sequence[str]) -> list[Sequence[str]]:
    """The order of the arms in each pair, turned round every time: what grows meanwhile favours neither."""
    return [arms if number % 2 == 0 else arms[::-1] for number in range(pairs)]


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give 1 or more")
    return number


async def _interruptible(answering: Answering, options: argparse.Namespace) -> Answer:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await answering(options)
