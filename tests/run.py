"""Runs the parts of `make test`: says at its start what runs and how long that took last time, and times each part.

The chain mostly waits for an emulated machine, so it runs beside all others. What it says is shown when it ends, in one
piece. The first part that fails ends the other one. The times of the last green run stand in the user's cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coda_lab.host.paths import Settings

TIMES = "test-times.json"
ESTIMATE_S = 20 * 60  # on two idle cores with warm caches: the README's estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A target of the Makefile, and what it is in a few words."""

    target: str
    title: str


PARTS = (
    Part(target="check", title="ruff, mypy, import contracts"),
    Part(target="unit", title="tests that need no cluster"),
    Part(target="compiled", title="the core and the simulator, compiled"),
    Part(target="e2e", title="tests on local control planes"),
)
BESIDE = Part(target="chain", title="a real node in a virtual machine; it runs beside the others")
PREPARED = ("rigs", "kube", "helm")
WHOLE, PREPARATION = "whole", "set-up"
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
    lines = [f"    {part.target:9} {part.title}" for part in (*PARTS, BESIDE)]
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
        await run(target)
    took = {PREPARATION: time.monotonic() - began_s}
    with tempfile.TemporaryFile() as said:
        try:
            async with asyncio.TaskGroup() as lanes:
                beside = lanes.create_task(run(BESIDE.target, said))
                for part in PARTS:
                    took[part.target] = await run(part.target)
                if not beside.done():
                    say(f"==> waiting for {BESIDE.target}")
        except* PartFailed as failed:
            if beside.done() and not beside.cancelled():
                show(said)
            raise failed.exceptions[0] from None
        show(said)
    return took | {BESIDE.target: beside.result(), WHOLE: time.monotonic() - began_s}


async def run(target: str, output: IO[bytes] | None = None) -> float:
    """Make `target`; the seconds that took. Raises PartFailed. Cancelled, it interrupts all that the target started."""
    began_s = time.monotonic()
    # Cancelled while it starts a process, asyncio kills that one alone and leaves its children: let it start first.
    starting = asyncio.create_task(started(target, output))
    try:
        make = await asyncio.shield(starting)
        code = await make.wait()
    finally:
        make = await starting
        if make.returncode is None:
            await end(make)
    if code != 0:
        raise PartFailed(target)
    return time.monotonic() - began_s


async def started(target: str, output: IO[bytes] | None) -> asyncio.subprocess.Process:
    """The process that makes `target`, the leader of a group of its own."""
    return await asyncio.create_subprocess_exec(
        *("make", "--no-print-directory", target),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else asyncio.subprocess.STDOUT,
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


def show(said: IO[bytes]) -> None:
    """What a part said that ran beside others."""
    said.seek(0)
    say(said.read().decode(errors="replace").rstrip())


def say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
