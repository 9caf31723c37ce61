"""`coda demo`: the story; or example jobs on a local cluster, and what becomes of them while one looks."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.model import Phase
from coda.wording import counted
from coda_cli.demo.day import show_day_beside
from coda_cli.demo.examples import Example, examples_in
from coda_cli.demo.job_table import DemoDisplay, reasons_of, summary_table
from coda_cli.demo.story_command import show_story
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.job_history import Follower, History, following, jobs_path
from coda_cli.target_cluster import TargetCluster, local_target, refereed
from coda_kube.api.client import Client, Rejected
from coda_lab.checker import Report as Check
from coda_lab.host.paths import Settings
from coda_lab.programs.control_plane import ensure_shown
from coda_sim.workload import ClusterShape, shape_from_text

NAMESPACE = "default"
GIVE_UP_S = 600.0  # ten times what the examples take; a slow machine must not fail for being slow


def demo_command(
    examples: Annotated[
        Path | None, typer.Option(help="Run the TrainingJobs of this folder instead, and follow them to their end.")
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(help="With --examples: nodes as NODESxGPUSxCORES, or several of these with commas between."),
    ] = "8x8x48",
    racks: Annotated[int, typer.Option(min=1, help="With --examples: racks to spread the nodes over.")] = 2,
    speed: Annotated[float, typer.Option(help="With --examples: divide their run times by this number.")] = 1.0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster at the end until Ctrl-C.")] = False,
) -> None:
    """Show what Coda does, in three minutes, on a local cluster of its own. It needs a clone of the repository.

    First comes a day of a full cluster, simulated while the control plane is built. Then CPU jobs borrow idle cores, a
    gang takes them back, a job says why it waits, another finds how many cores it needs, and a CPU pod that slows
    training down is throttled. Exit code 0: all of it was seen; 1: something was not.
    With --examples, 0: every job ended as it should, or said that it can never fit."""
    console = result_console()
    with one_sentence(Console(stderr=True)):
        if examples is None:
            shown_on = console if console.is_terminal else None  # else lines of the build would be among the results
            show_day_beside(console, partial(ensure_shown, Settings.from_environ(), shown_on))
            problems = asyncio.run(show_story(console, keep=until_interrupted if keep else None))
        else:
            if not 0 < speed < math.inf:
                raise InvalidInput(f"--speed {speed}: must be a number above 0")
            shape_from_text(nodes)
            jobs = examples_in(examples, namespace=NAMESPACE, speed=speed)
            problems = asyncio.run(_demo(jobs, nodes, racks, keep=keep, console=console))
        if problems:
            raise typer.Exit(1)


async def _demo(
    examples: Sequence[Example], nodes: str, racks: int, *, keep: bool, console: Console
) -> tuple[str, ...]:
    console.print(
        f"Starting a local cluster of {nodes} (nodes x GPUs x cores) in {counted(racks, 'rack')}.", highlight=False
    )
    async with local_target(nodes, racks, console) as (target, admin):
        _say_how_to_look(target, console)
        async with refereed(admin) as watched, following(target.client, NAMESPACE, selector="") as follower:
            began_s = time.time()
            rejected = await _submit(target.client, examples)
            with DemoDisplay(console, [example.name for example in examples]) as display:
                await _until_settled(follower, display, expected=len(examples) - len(rejected), give_up_s=GIVE_UP_S)
        histories = follower.by_name
        _say_what_became([histories[each.name] for each in examples if each.name in histories], console)
        problems = (
            *rejected,
            *problems_of(examples, histories, target.shape),
            *(f"{part} ended by itself" for part in target.ended_parts()),
            *_breaches(watched.check),
        )
        took = f"{time.time() - began_s:.0f} s"
        _say_end(watched.check, problems, took, console)
        if keep:
            await until_interrupted(target.kubectl, console)
    return problems


async def _submit(client: Client, examples: Sequence[Example]) -> list[str]:
    """Create every example, in order. Return a sentence for each one that the API server refuses."""
    rejected = []
    for example in examples:
        try:
            await client.create(jobs_path(NAMESPACE), example.manifest)
        except Rejected as error:
            rejected.append(f"{example.file}: {example.name} was not taken by the API server: {error}")
    return rejected


async def _until_settled(follower: Follower, display: DemoDisplay, *, expected: int, give_up_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(give_up_s):
            while True:
                display.show(follower.by_name)
                settled = sum(each.is_over or each.is_hopeless for each in follower.by_name.values())
                if settled >= expected:
                    return
                await follower.change(1.0)


def problems_of(examples: Sequence[Example], histories: dict[str, History], shape: ClusterShape) -> list[str]:
    """Return a sentence for each job that did not end as its file and the cluster's size let expect."""
    found = []
    for example in examples:
        history = histories.get(example.name)
        if history is None or history.phase is Phase.SUCCEEDED:
            continue
        if history.is_hopeless and (not example.fits(shape) or _insists_on_a_domain(example)):
            continue
        phase = history.phase.value if history.phase else "not accepted by the operator"
        why = f"{history.pending.code}: {history.pending.message}" if history.pending else history.message
        found.append(f"{example.file}: {example.name} should have succeeded, but is {phase} ({why})")
    return found


def _insists_on_a_domain(example: Example) -> bool:
    return bool((example.manifest["spec"].get("locality") or {}).get("required"))


def _breaches(check: Check | None) -> list[str]:
    breaches = check.breaches if check else ()
    return [f"invariant ({each.invariant.value}), {each.invariant.title}: {each.sentence}" for each in breaches]


def _say_how_to_look(target: TargetCluster, console: Console) -> None:
    console.print("Watch it from another terminal while it runs:")
    newest_last = "get events --sort-by=.metadata.creationTimestamp"  # Coda's events have no lastTimestamp
    for command in ("get tj -o wide", "get pods -o wide", "describe tj gpt-64", newest_last):
        console.print(f"  {target.kubectl} {command}", highlight=False, markup=False, soft_wrap=True)


def _say_what_became(histories: Sequence[History], console: Console) -> None:
    console.print(summary_table(histories))
    for line in reasons_of(histories):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _say_end(check: Check | None, problems: Sequence[str], took: str, console: Console) -> None:
    if check is not None:
        console.print(f"Invariants: {check.summary()}.", highlight=False, markup=False)
    for problem in problems:
        console.print(f"unexpected: {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Done in {took}: {'as expected' if not problems else f'{len(problems)} unexpected'}.", highlight=False
    )


async def until_interrupted(kubectl: str, console: Console) -> None:
    """Say how to use the cluster, and wait for Ctrl-C."""
    console.print("The cluster stays until Ctrl-C. Submit your own jobs:", highlight=False)
    console.print(f"  {kubectl} apply -f YOUR-JOB.yaml", highlight=False, markup=False, soft_wrap=True)
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    await interrupted.wait()
