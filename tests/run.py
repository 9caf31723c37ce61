"""Runs the parts of `make test`: says at its start what runs and how long that took last time, and times each part.

Some parts mostly wait: for an emulated machine, for leases, for windows of a tuning. One of them runs beside those that
compute. What it says is shown when it ends, in one piece, or as it says it once nothing else runs.
The first part that fails ends the others. The times of the last green run stand in the user's cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coda_lab.host.paths import Settings

TIMES = "test-times.json"
ESTIMATE_S = 33 * 60  # on two idle cores with warm caches, by its parts; on cores of half the speed an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A target of the Makefile, and what it is in a few words. With `yields` it takes only what the others leave."""

    target: str
    title: str
    yields: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Parts that compute, one after the other, and one beside them that mostly waits."""

    computing: tuple[Part, ...]
    waiting: Part


STAGES = (
    Stage(
        computing=(
            Part(target="check", title="ruff, mypy, import contracts"),
            Part(target="unit", title="tests that need no cluster"),
        ),
        waiting=Part(target="chain", title="a real node in a virtual machine; beside these"),
    ),
    Stage(
        computing=(Part(target="compiled", title="the core and the simulator, compiled", yields=True),),
        waiting=Part(target="e2e", title="tests on local control planes; beside that"),
    ),
)
"""The unit tests and the control planes want both cores. Beside each other neither is done sooner, and leases end."""

PARTS = tuple(part for stage in STAGES for part in (*stage.computing, stage.waiting))
PREPARED = ("rigs", "kube", "helm")
WHOLE, PREPARATION = "whole", "set-up"
YIELDING = ("sh", "-c", '{ echo 10 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 10 "$@"', "sh")
"""Starts a command that gives way. Linux compares the processes of a session only with each other, but for the file."""
LAST_WORDS_S = 5.0
ENDINGS = ((signal.SIGINT, 45.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""How a part is ended, and the seconds it has for that: an interrupted one takes its clusters down."""


class PartFailed(Exception):
    """A part did not pass."""

    def __init__(self, target: str) -> None:
        super().__init__(f"make {target} failed")


def main() -> int:
    """Run all parts; 0 if all passed, 1 if one did not, 130 when interrupted."""
    file = Settings.from_environ().cache / TIMES
    say(*introduction(times_of_last_run(file)))
    try:
        seconds_by_part = asyncio.run(run_all())
    except PartFailed as failed:
        say(f"==> {failed}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("==> interrupted")
        return 130
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"ended_s": time.time(), "seconds_by_part": seconds_by_part}))
    say(f"==> all checks and tests passed in {summary(seconds_by_part)}")
    return 0


def introduction(last: tuple[float, Mapping[str, float]] | None) -> tuple[str, ...]:
    """What a person reads first."""
    lines = [f"    {part.target:9} {part.title}" for part in PARTS]
    if last is None:
        took = f"About {minutes(ESTIMATE_S)} on two idle cores, and longer the first time: programs are built once."
    else:
        day = time.strftime("%Y-%m-%d", time.localtime(last[0]))
        took = f"The last green run ({day}) took {summary(last[1])}."
    return ("==> make test runs these parts. The long chains are in `make verify`.", *lines, took)


def times_of_last_run(file: Path) -> tuple[float, Mapping[str, float]] | None:
    """When the last green run ended, in seconds since 1970, and the seconds of each part; None: there was none."""
    try:
        found = json.loads(file.read_text())
        return float(found["ended_s"]), {str(name): float(took) for name, took in found["seconds_by_part"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def summary(seconds_by_part: Mapping[str, float]) -> str:
    """The whole time, and that of each part."""
    parts = ", ".join(f"{name} {minutes(took)}" for name, took in seconds_by_part.items() if name != WHOLE)
    return f"{minutes(seconds_by_part.get(WHOLE, 0.0))} ({parts})"


def minutes(seconds: float) -> str:
    """Such as `17 min 20 s`."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"


async def run_all() -> dict[str, float]:
    """The seconds of each part. Raises PartFailed; nothing runs afterwards."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    began_s = time.monotonic()
    for target in PREPARED:
        await run(Part(target=target, title=""))
    took = {PREPARATION: time.monotonic() - began_s}
    for stage in STAGES:
        await run_stage(stage, took)
    return took | {WHOLE: time.monotonic() - began_s}


async def run_stage(stage: Stage, took: dict[str, float]) -> None:
    """Run the parts of a stage and note their seconds. Raises PartFailed; nothing runs afterwards."""
    words = Words()
    try:
        async with asyncio.TaskGroup() as lanes:
            beside = lanes.create_task(run_beside(stage.waiting, words, took))
            for part in stage.computing:
                took[part.target] = await run(part)
            if not beside.done():
                say(f"==> waiting for {stage.waiting.target}")
                words.release()
    except* PartFailed as failed:
        raise failed.exceptions[0] from None


async def run_beside(part: Part, words: Words, took: dict[str, float]) -> None:
    """Run a part that waits. Raises PartFailed, with what the part said."""
    try:
        took[part.target] = await run(part, words)
    except PartFailed:
        words.show()
        raise
    words.show()


class Words:
    """What parts say beside others: kept until it is shown, and passed on at once after `release`."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._is_live = False

    def add(self, words: bytes) -> None:
        """Keep what was said, or pass it on."""
        self._kept += words
        if self._is_live:
            self.show()

    def release(self) -> None:
        """From now on nothing else speaks."""
        self._is_live = True
        self.show()

    def show(self) -> None:
        """Write what is kept."""
        sys.stdout.buffer.write(self._kept)
        sys.stdout.flush()
        self._kept.clear()


async def run(part: Part, words: Words | None = None) -> float:
    """Make the part; the seconds that took. Raises PartFailed. Cancelled, it interrupts all that the part started."""
    began_s = time.monotonic()
    # Cancelled while it starts a process, asyncio kills that one alone and leaves its children: let it start first.
    starting = asyncio.create_task(started(part, is_heard=words is not None))
    listening: asyncio.Task[None] | None = None
    try:
        make = await asyncio.shield(starting)
        if words is not None and make.stdout is not None:
            listening = asyncio.create_task(listen(make.stdout, words))
        code = await make.wait()
    finally:
        make = await starting
        if make.returncode is None:
            await end(make)
        if listening is not None:
            await asyncio.wait({listening}, timeout=LAST_WORDS_S)  # a process that outlives its part may hold the pipe
            listening.cancel()
    if code != 0:
        raise PartFailed(part.target)
    return time.monotonic() - began_s


async def listen(said: asyncio.StreamReader, words: Words) -> None:
    """Keep all that is said, to its end."""
    while chunk := await said.read(65_536):
        words.add(chunk)


async def started(part: Part, *, is_heard: bool) -> asyncio.subprocess.Process:
    """The process that makes the part, the leader of a group of its own."""
    return await asyncio.create_subprocess_exec(
        *(*(YIELDING if part.yields else ()), "make", "--no-print-directory", part.target),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE if is_heard else None,
        stderr=asyncio.subprocess.STDOUT if is_heard else None,
        start_new_session=True,
    )


async def end(make: asyncio.subprocess.Process) -> None:
    """Interrupt the process and its children, and wait; kill those that do not end."""
    for number, within_s in ENDINGS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(make.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(make.wait(), within_s)
            return


def say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
