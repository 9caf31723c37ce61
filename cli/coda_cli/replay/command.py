"""`coda replay TRACE`: its options, and how the parts of a replay are put together."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.policy import DEFAULT
from coda.wording import counted, listed
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.out_files import check_writable, write_whole
from coda_cli.progress import ReplayDisplay
from coda_cli.replay.metrics import ReplayRun, ReplaySummary, Workload, summary_from_run
from coda_cli.replay.run import ReplayLimits, replay
from coda_cli.replay.submissions import Manner, Submission, submissions_from_gangs
from coda_cli.replay.summary import json_from_summary, show
from coda_cli.target_cluster import TargetCluster, cluster_target, local_target, opt_in, planner_of_replay, refereed
from coda_cli.trace_options import (
    CompressOption,
    GpuJobsOnlyOption,
    KeepOption,
    LimitOption,
    MaxDurationOption,
    MaxGpusOption,
    SampleOption,
    WindowOption,
    positive,
    selection_from_options,
)
from coda_kube.api.installed_version import installed_version
from coda_sim.durations import seconds_from_duration
from coda_sim.engine import CostSetting
from coda_sim.traces import Format, OnError, Selected, Selection, Trace, read_request_table, read_trace, select
from coda_sim.workload import ClusterShape, Cores, Gang, RefusedRow, gangs_from_rows, shape_from_text
from coda_sim.workload.gangs import CORES_PER_GPU

NODES = "12x8x48"
RACKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of the command line, checked."""

    trace: Path
    on_error: OnError
    selection: Selection
    cores: Cores
    cores_rule: str
    speed: float
    namespace: str
    image: str
    with_failures: bool
    costs: CostSetting
    is_local: bool  # the jobs go to a fresh local cluster, else to an existing one
    nodes: str | None  # of the local cluster, or what a dry run assumes of an existing one; None: those that it has
    racks: int
    policy: str  # of that cluster; empty: as installed
    kubeconfig: Path | None
    check: bool
    timeout_s: float | None
    out: Path | None


def replay_command(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="A trace in the common schema, or as Philly, Helios or openb publish it; plain or gzip.",
        ),
    ],
    local: Annotated[
        bool,
        typer.Option("--local", help="Start a local control plane, and submit to it; needs a clone of the repository."),
    ] = False,
    nodes: Annotated[
        str | None, typer.Option(help=f"Nodes of the local cluster: NODESxGPUSxCORES, ... [default: {NODES}]")
    ] = None,
    racks: Annotated[
        int | None, typer.Option(min=1, help=f"Number of racks to spread the local nodes over [default: {RACKS}].")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help=f"Policy of the local planner, by its name in `coda simulate` [default: {DEFAULT}]."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="The cluster to submit to [default: your current one].")
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="Create the jobs here; with --local, those of rows without a user.")
    ] = "default",
    speed: Annotated[float, typer.Option(help="Divide all times by this number.")] = 200.0,
    limit: LimitOption = None,
    max_duration: MaxDurationOption = None,
    window: WindowOption = None,
    compress: CompressOption = 1.0,
    keep: KeepOption = None,
    sample: SampleOption = 0,
    max_gpus_per_job: MaxGpusOption = None,
    gpu_jobs_only: GpuJobsOnlyOption = False,
    request_table: Annotated[
        Path | None, typer.Option(help="For jobs without cores, draw them from this table (columns gpus, cpus, jobs).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of these draws [default: 0].")] = None,
    with_failures: Annotated[
        bool, typer.Option(help="Let jobs that are recorded as failed exit with 1, without retries.")
    ] = False,
    costs: Annotated[
        CostSetting,
        typer.Option(help="paid: a CPU job that gave its cores back begins again; resumed or free: it goes on."),
    ] = CostSetting.PAID,
    on_error: Annotated[OnError, typer.Option(help="Skip bad rows, or refuse the file.")] = OnError.SKIP,
    image: Annotated[str, typer.Option(help="Image of the jobs; it must have `sleep`.")] = "busybox:1.37",
    check: Annotated[bool, typer.Option(help="Check the invariants all the time; --local always does.")] = False,
    timeout: Annotated[str | None, typer.Option(help="Give up after this much real time, as 30m.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this file as JSON.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the jobs as JSON lines, and submit nothing.")] = False,
) -> None:
    """Submit the jobs of a trace, and report their waits.

    Each GPU job becomes a TrainingJob, each CPU job a Job; they run for their recorded time and succeed. Exit code 0:
    every job finished or was refused by name, no invariant was broken, and every TrainingJob that waited said why; 1:
    anything else happened; 2: bad input, nothing was submitted."""
    notes = Console(stderr=True)
    with one_sentence(notes):
        if nodes is not None and not (local or dry_run):
            raise InvalidInput("--nodes describes the local cluster: add --local")
        if racks is not None and not (local or dry_run):
            raise InvalidInput("--racks describes the local cluster: add --local")
        if policy is not None and not (local or dry_run):
            raise InvalidInput("--policy is the local cluster's: add --local, or set it where Coda is installed")
        if local and kubeconfig is not None:
            raise InvalidInput("--local starts its own cluster: leave --kubeconfig out")
        if seed is not None and request_table is None:
            raise InvalidInput(f"--seed {seed} is of the draws from a table: add --request-table")
        table = read_request_table(request_table) if request_table else ()
        settings = ReplayOptions(
            trace=trace,
            on_error=on_error,
            selection=selection_from_options(
                window=window,
                gpu_jobs_only=gpu_jobs_only,
                max_gpus_per_job=max_gpus_per_job,
                keep=keep,
                sample=sample,
                limit=limit,
                compress=compress,
                max_duration=max_duration,
            ),
            cores=Cores(table=table, seed=seed or 0),
            cores_rule=f"drawn from {request_table}, seed {seed or 0}" if table else f"{CORES_PER_GPU} per GPU",
            speed=positive("--speed", speed),
            namespace=namespace,
            image=image,
            with_failures=with_failures,
            costs=costs,
            is_local=local,
            nodes=(nodes or NODES) if local or dry_run else None,
            racks=racks or RACKS,
            policy=(policy or DEFAULT) if local else "",
            kubeconfig=kubeconfig,
            check=check or local,
            timeout_s=None if timeout is None else seconds_from_duration(timeout),
            out=out,
        )
        if dry_run:
            given = (("--kubeconfig", kubeconfig), ("--out", out), ("--timeout", timeout), ("--check", check or None))
            _check_dry_run((*given, ("--racks", racks), ("--policy", policy)))
            _print_submissions(settings, notes, assumes=nodes is None and not local)
        else:
            _replay_and_report(settings, notes)


def _check_dry_run(given: Iterable[tuple[str, object]]) -> None:
    """Raise InvalidInput for the first of these options that was given: none changes what is printed."""
    for option, value in given:
        if value is not None:
            raise InvalidInput(f"{option} has no effect with --dry-run, which submits nothing: leave one of them out")


def _replay_and_report(settings: ReplayOptions, notes: Console) -> None:
    summary = asyncio.run(_run(settings, notes))
    write_and_show(summary, settings.out, result_console())
    if summary.problems:
        raise typer.Exit(1)


def write_and_show(summary: ReplaySummary, out: Path | None, console: Console) -> None:
    """Write the whole result to `out`, if there is one, and print the summary: each even if the other fails."""
    try:
        if out is not None:
            result = json_from_summary(summary, version=installed_version())
            write_whole(out, orjson.dumps(result, option=orjson.OPT_INDENT_2))
    finally:  # neither a full disk nor a reader of stdout who left takes both
        show(summary, console)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """The trace, the rows that the options select, and the jobs and refusals that these rows give."""

    trace: Trace
    selected: Selected
    gangs: tuple[Gang, ...]
    refused: tuple[RefusedRow, ...]


def _load(settings: ReplayOptions, trace: Trace, shape: ClusterShape) -> _Load:
    selected = select(trace.rows, settings.selection, trace.path)
    gangs, refused = gangs_from_rows(selected.rows, shape, settings.cores)
    if not gangs:
        why = "every one can never fit the cluster" if refused else "the options select none"
        raise InvalidInput(f"{settings.trace}: no job to submit: {why} ({settings.selection.rule()}; cluster {shape})")
    return _Load(trace=trace, selected=selected, gangs=gangs, refused=refused)


def _read(settings: ReplayOptions, notes: Console) -> Trace:
    """Read the trace; a format other than our own is reported."""
    trace = read_trace(settings.trace, on_error=settings.on_error)
    if trace.format is not Format.COMMON:
        notes.print(trace.account(), markup=False, highlight=False, soft_wrap=True)
    return trace


async def _run(settings: ReplayOptions, notes: Console) -> ReplaySummary:
    trace = _read(settings, notes)
    if settings.out is not None:
        check_writable(settings.out)
    if settings.nodes is not None:
        _load(settings, trace, shape_from_text(settings.nodes))  # reports bad input before anything starts
        planner = planner_of_replay(settings.policy, settings.speed)
        opened = local_target(settings.nodes, settings.racks, notes, planner=planner)
    else:
        opened = cluster_target(settings.kubeconfig)
    async with opened as (target, admin):
        load = _load(settings, trace, target.shape)
        manner = _manner(settings, run=f"replay-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}")
        submissions = submissions_from_gangs(load.gangs, manner, source=settings.trace.name)
        _announce(settings, target, submissions, notes)
        if manner.opts_in:
            await opt_in(admin, {one.namespace for one in submissions})
        limits = ReplayLimits(timeout_s=settings.timeout_s, ended_parts=target.ended_parts)
        async with refereed(admin if settings.check else None) as watched:
            with ReplayDisplay(notes) as display:
                client = admin if manner.by_user else target.client
                replayed = await replay(client, submissions, manner, display, limits)
        return summary_from_run(
            ReplayRun(
                workload=_workload(settings, load),
                cluster=str(target.shape),
                policy=settings.policy or "as installed",
                costs=settings.costs.value,
                racks=settings.racks if settings.nodes is not None else None,
                speed=settings.speed,
                jobs=replayed.jobs,
                began_s=replayed.began_s,
                ended_s=replayed.ended_s,
                check=watched.check,
                ended_parts=target.ended_parts(),
                stopped=replayed.stopped,
            )
        )


def _announce(
    settings: ReplayOptions, target: TargetCluster, submissions: tuple[Submission, ...], notes: Console
) -> None:
    last_s = submissions[-1].at_s
    cpu_jobs = sum(one.is_cpu_job for one in submissions)
    counts = ((len(submissions) - cpu_jobs, "TrainingJob"), (cpu_jobs, "CPU job"))
    kinds = [counted(count, kind) for count, kind in counts if count]
    where = f"-n {settings.namespace}" if settings.nodes is None else "-A"
    notes.print(
        f"Submitting {listed(kinds)} of {settings.trace.name} to {target.where} over {last_s:.0f} s. "
        f"See them with: {target.kubectl} get tj,pods {where}",
        highlight=False,
        markup=False,  # an address may have brackets
        soft_wrap=True,
    )


def _manner(settings: ReplayOptions, *, run: str) -> Manner:
    return Manner(
        namespace=settings.namespace,
        run=run,
        speed=settings.speed,
        image=settings.image,
        with_failures=settings.with_failures,
        with_pods=settings.is_local,
        by_user=settings.is_local,
        opts_in=settings.is_local,
        costs=settings.costs,
    )


def _workload(settings: ReplayOptions, load: _Load) -> Workload:
    changes = Counter(change for gang in load.gangs for change in gang.changes)
    return Workload(
        trace=str(settings.trace),
        rule=settings.selection.rule(),
        cores=settings.cores_rule,
        rows=len(load.trace.rows),
        left_out=load.selected.left_out,
        durations_cut=load.selected.durations_cut,
        was_sorted=load.trace.was_sorted,
        seed=settings.cores.seed,
        skipped=load.trace.bad,
        refused=load.refused,
        changes=dict(sorted(changes.items(), key=lambda entry: entry[0].name)),
        rows_changed=sum(bool(gang.changes) for gang in load.gangs),
    )


def _print_submissions(settings: ReplayOptions, notes: Console, *, assumes: bool) -> None:
    """Print each job and its time as a JSON line on stdout; skipped and refused rows go to stderr.

    `assumes`: nobody said which nodes there are, so stderr says which ones rows are fitted to."""
    trace = _read(settings, notes)
    assert settings.nodes is not None
    load = _load(settings, trace, shape_from_text(settings.nodes))
    if assumes:
        notes.print(
            f"no cluster is asked: the nodes are taken to be {settings.nodes}; name others with --nodes",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    for bad in trace.bad:
        notes.print(
            f"skipped: {settings.trace}:{bad.line}: {bad.sentence}", markup=False, highlight=False, soft_wrap=True
        )
    for one in load.refused:
        where = f"{settings.trace}:{one.row.line}: {one.row.job_id}"
        notes.print(f"refused: {where} {one.sentence}", markup=False, highlight=False, soft_wrap=True)
    for submission in submissions_from_gangs(load.gangs, _manner(settings, run="dry-run"), source=settings.trace.name):
        sys.stdout.buffer.write(orjson.dumps({"at_s": submission.at_s, "object": submission.manifest}) + b"\n")
