"""`coda simulate`: its options, and how the parts of a study are put together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.nodes.locality import locality_from_text
from coda.policy import DEFAULT, POLICIES, ArraysConfig, PolicyConfig
from coda.sharing.policies import SHARING_POLICIES
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.out_files import folder_from_text, make_folder, write_whole
from coda_cli.simulate.account import account_of
from coda_cli.simulate.comparison import show
from coda_cli.simulate.html_report import WorkloadWords, report_page
from coda_cli.simulate.plots import write_plots
from coda_cli.simulate.runs import performed
from coda_cli.simulate.sharing import refuse_other_options, simulate_sharing
from coda_cli.trace_options import (
    CompressOption,
    GpuJobsOnlyOption,
    KeepOption,
    LimitOption,
    MaxDurationOption,
    MaxGpusOption,
    SampleOption,
    WindowOption,
    selection_from_options,
)
from coda_kube.api.installed_version import installed_version
from coda_sim.durations import seconds_from_duration
from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from coda_sim.results.metrics import window_of
from coda_sim.results.summary import json_from_results, json_from_timings
from coda_sim.runs import PARTS, RunOrder, RunOutcome, check, shape_of
from coda_sim.sharing.studies import GPU_TRACE, JOB_SETS
from coda_sim.traces import OnError
from coda_sim.workload import WorkloadSource, load
from coda_sim.workload.workload import MONTH, default_shape, default_warmup_s, json_from_source

ALL = "all"
TIMELINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All runs of one command, and the facts that their workload has in common (`head`, the top of summary.json)."""

    orders: tuple[RunOrder, ...]
    head: dict[str, Any]
    words: WorkloadWords
    out: Path | None


def simulate_command(
    context: typer.Context,
    workload: Annotated[
        str | None, typer.Option(help=f"The generated workload [default: {MONTH}]; not with --trace.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Simulate this trace instead: common schema (docs/own-traces.md), Philly, Helios or openb."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="NODESxGPUSxCORES[xGIB], ... or FILE[:SHAPE] with node groups. Needed with --trace."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Policy to simulate [default: {DEFAULT}]; may be given again. `all` means {', '.join(POLICIES)}."
        ),
    ] = None,
    sharing: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Simulate jobs that share GPUs under this policy instead (docs/gpu-sharing.md): "
            f"{', '.join(SHARING_POLICIES)}, or all. --workload is then {GPU_TRACE} or {JOB_SETS}."
        ),
    ] = None,
    tenants: Annotated[
        str,
        typer.Option(
            help="Virtual clusters: a CSV FILE (name,parent,gpus,cpus,weight,mayBorrow), or `shares`: those of the "
            "trace, or groups of its users, in two levels, with quotas by what their jobs use."
        ),
    ] = "",
    without: Annotated[
        list[str] | None,
        typer.Option(help=f"Leave this part of the policy out; may be given again: {', '.join(PARTS)}."),
    ] = None,
    take_back: Annotated[
        bool, typer.Option("--take-back", help="GPU jobs give cores of the CPU array back while they run.")
    ] = False,
    auto_division: Annotated[
        bool, typer.Option("--auto-division", help="The arrays follow what finished jobs used, as an Auto ArrayQuota.")
    ] = False,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Seed [default: 1]; may be given again: then means with a 95 % interval are shown."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    racks: Annotated[
        int, typer.Option(min=1, help="Number of racks to spread the nodes over, as `coda replay` does.")
    ] = 1,
    prefer: Annotated[
        str,
        typer.Option(
            help="How long gangs wait for one domain of a level, in seconds: rack=300, or node=60,rack=300; "
            "rack=inf: for ever. Needs --racks."
        ),
    ] = "",
    profiles: Annotated[
        str, typer.Option(help="How speed depends on cores: paper, steep or synergy; recorded: run times as recorded.")
    ] = "paper",
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
    on_error: Annotated[
        OnError | None, typer.Option(help="Skip bad rows of the --trace, or refuse the file [default: skip].")
    ] = None,
    costs: Annotated[
        CostSetting,
        typer.Option(
            help="paid: an aborted CPU job begins again, and resizes and profiles take time; resumed: it goes on where "
            "it was (CODA's text); free: only restarts of GPU jobs cost time."
        ),
    ] = CostSetting.PAID,
    resumable: Annotated[
        float,
        typer.Option(help="Share of GPU jobs that have checkpoints, 0 to 1: only these are stopped for other jobs."),
    ] = 1.0,
    save_every: Annotated[
        str | None,
        typer.Option(help="GPU jobs that resume save so often, and lose the rest [default: they are told, and save]."),
    ] = None,
    restart_aborted: Annotated[bool, typer.Option("--restart-aborted", hidden=True)] = False,
    warmup: Annotated[
        str | None, typer.Option(help="Measure from this time on [default: 1d if submissions span 10 days, else 0].")
    ] = None,
    drain: Annotated[str | None, typer.Option(help="Measure until this time before the last submission.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=folder_from_text,
            metavar="<path>",
            help="Write summary.json, jobs.csv.gz, plots and report.html to this folder.",
        ),
    ] = None,
    all_measures: Annotated[
        bool, typer.Option("--all-measures", help="Print every measure instead of the eight that matter most.")
    ] = False,
) -> None:
    """Simulate policies on a generated month or a trace.

    The planner of the cluster decides, time is virtual: a month takes about a minute. Exit code 0: done; 1: failed;
    2: bad input, nothing was run."""
    notes = Console(stderr=True)
    with one_sentence(notes):
        if restart_aborted:
            raise InvalidInput("--restart-aborted is the default now, as --costs paid: leave it out")
        if sharing:
            refuse_other_options(context)
            simulate_sharing(sharing, workload, without or (), seed or (1,), out, result_console())
            return
        _check_workload(workload, trace, on_error, request_table)
        source = WorkloadSource(
            trace=trace,
            on_error=on_error or OnError.SKIP,
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
            request_table=request_table,
        )
        cluster = default_shape(source) if cluster is None else cluster
        if cluster is None:
            raise InvalidInput("--trace needs --cluster: NODESxGPUSxCORES, as 12x8x48")
        if save_every is not None and not resumable:
            raise InvalidInput(f"--save-every {save_every} has no effect with --resumable 0: no GPU job saves")
        template = RunOrder(
            source=source,
            cluster=cluster,
            racks=racks,
            profiles=profiles,
            policy="",
            without=tuple(sorted(set(without or ()))),
            divides_from_history=auto_division,
            tenants=tenants,
            planner=PolicyConfig(locality=locality_from_text(prefer), arrays=ArraysConfig(takes_back=take_back)),
            seed=0,
            costs=replace(
                COSTS_BY_SETTING[costs],
                resuming_gpu_jobs=resumable,
                save_every_s=0.0 if save_every is None else seconds_from_duration(save_every),
            ),
            warmup_s=None if warmup is None else seconds_from_duration(warmup, may_be_zero=True),
            drain_s=0.0 if drain is None else seconds_from_duration(drain, may_be_zero=True),
        )
        asked = (("--take-back", take_back), ("--auto-division", auto_division))
        _check_arrays(policy or [DEFAULT], [option for option, is_asked in asked if is_asked])
        study = _study(template, policy or [DEFAULT], seed or [1], out, notes, costs)
        _perform_and_report(study, jobs, notes, all_measures=all_measures)


def _check_workload(workload: str | None, trace: Path | None, on_error: OnError | None, table: Path | None) -> None:
    """Raise InvalidInput if an option names no workload, or would have no effect on the one that is named."""
    if workload is not None and trace is not None:
        raise InvalidInput(f"--workload {workload} and --trace {trace}: give one of them")
    if workload not in (None, MONTH):
        raise InvalidInput(f"--workload {workload}: the generated workload is {MONTH}; a file is --trace FILE")
    if trace is None and on_error is not None:
        raise InvalidInput(f"--on-error {on_error.value} is for bad rows of a --trace: {MONTH} has none")
    if trace is None and table is not None:
        raise InvalidInput(f"--request-table {table} is for jobs of a --trace without cores: {MONTH} names them all")


def _check_arrays(policies: Sequence[str], options: Sequence[str]) -> None:
    """Raise InvalidInput for an option about arrays if no policy that is simulated has some."""
    names = [name for name in policies if name == ALL or (name in POLICIES and POLICIES[name].has_arrays)]
    if options and not names:
        having = ", ".join(name for name, policy in POLICIES.items() if policy.has_arrays)
        raise InvalidInput(f"{options[0]} has no effect on {', '.join(policies)}: only {having} has arrays")


def _study(
    template: RunOrder,
    policies: Sequence[str],
    seeds: Sequence[int],
    out: Path | None,
    notes: Console,
    costs: CostSetting,
) -> Study:
    """Check everything before anything runs. Orders are sorted by policy, then by seed."""
    names = list(POLICIES) if ALL in policies else list(dict.fromkeys(policies))
    named = [(name, seed) for name in names for seed in dict.fromkeys(seeds)]
    orders = tuple(_order(template, name, seed, out, alone=len(named) == 1) for name, seed in named)
    for order in orders:
        check(order)
    shape = shape_of(template)
    found = load(template.source, shape, seed=orders[0].seed)
    warmup_s = default_warmup_s(found) if template.warmup_s is None else template.warmup_s
    window_of(found.submits_s, warmup_s=warmup_s, drain_s=template.drain_s)  # refuses one in which nothing is left
    account = account_of(template, found, warmup_s)
    for line in account:
        notes.print(line, markup=False, highlight=False, soft_wrap=True)
    head = {
        "version": installed_version(),
        "command": "simulate",
        "workload": {**json_from_source(template.source, found), "profiles": template.profiles},
        "cluster": str(shape),
        "racks": shape.racks,
        "costs": costs.value,
        "resumable": template.costs.resuming_gpu_jobs,
        "save_every_s": template.costs.save_every_s,
        "config": _digest(template),
        "warmup_s": warmup_s,
        "drain_s": template.drain_s,
    }
    if out is not None:
        make_folder(out, "summary.json")
    words = WorkloadWords(found.trace.left_out() if found.trace else "", account)
    return Study(orders=orders, head=head, words=words, out=out)


def _order(template: RunOrder, policy: str, seed: int, out: Path | None, *, alone: bool) -> RunOrder:
    folder = None if out is None else out if alone else out / "-".join([policy, *template.without, f"seed{seed}"])
    return replace(template, policy=policy, seed=seed, records=folder and folder / "jobs.csv.gz")


def _digest(template: RunOrder) -> str:
    """Of everything that has an effect on the results besides policy and seed."""
    values = json.dumps(asdict(template), sort_keys=True, default=_plain)  # the same for other names of classes
    return hashlib.blake2b(values.encode(), digest_size=8).hexdigest()


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value)


def _perform_and_report(study: Study, jobs: int, notes: Console, *, all_measures: bool) -> None:
    outcomes = performed(study.orders, jobs, notes)
    results = [outcome.result for outcome in outcomes]
    try:
        if study.out is not None:
            _write(study, study.out, outcomes)
    finally:  # neither a full disk nor a reader of stdout who left takes both
        left_out = study.words.left_out
        show(results, study.head, result_console(), all_measures=all_measures, left_out=left_out)
    if study.out is not None:
        notes.print(f"Written to {study.out}: {_written(study.out, outcomes)}", highlight=False, soft_wrap=True)


def _write(study: Study, out: Path, outcomes: Sequence[RunOutcome]) -> None:
    results = [outcome.result for outcome in outcomes]
    _write_json(out / "summary.json", json_from_results(results, study.head))
    _write_json(out / "timing.json", json_from_timings(results))
    plots = write_plots(outcomes, out)
    records: dict[str, Path] = {}
    for order in study.orders:  # the first seed of each policy that was asked for as it is
        if order.records is not None and not order.without:
            records.setdefault(order.policy, order.records)
    page = report_page(results, study.head, plots, records=_shown(records), words=study.words)
    write_whole(out / "report.html", page.encode())


def _shown(records: Mapping[str, Path]) -> dict[str, Path]:
    """The default policy first, and at most `TIMELINES` others."""
    names = sorted(records, key=lambda name: name != DEFAULT)
    return {name: records[name] for name in names[: TIMELINES + 1]}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _written(out: Path, outcomes: Sequence[RunOutcome]) -> str:
    names = sorted(path.name for path in out.iterdir() if path.is_file())
    folders = "" if len(outcomes) == 1 else f"; jobs.csv.gz of each of the {len(outcomes)} runs in a folder of its own"
    return f"{', '.join(names)}{folders}"
