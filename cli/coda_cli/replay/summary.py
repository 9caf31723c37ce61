"""A replay's summary as tables for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coda.wording import counted
from coda_cli.job_history import Moments
from coda_cli.replay.metrics import AT_ALL, FollowedJob, JobOutcome, ReplayRun, ReplaySummary, Workload
from coda_sim.durations import duration_from_seconds

SHOWN = 20  # lines of each list; the JSON has them all


def show(summary: ReplaySummary, console: Console) -> None:
    """Print the summary."""
    run = summary.run
    console.print()
    _show_lines(console, "Rows skipped", _skipped(run.workload))
    _show_lines(console, "Rows refused", _refused(summary))
    console.print(_jobs_table(summary))
    for kind in ("gpu", "cpu"):
        if run.jobs_of(kind):
            console.print(_waits_table(summary, kind))
    console.print(_waited_table(summary))
    if summary.pending:
        console.print(_reasons_table(summary))
    lag_s = summary.real["submit_lag_max_s"]
    if lag_s is not None:
        console.print(f"Largest lag of a submission: {lag_s:.3f} s.", highlight=False)
    checked = run.check.summary() if run.check else "not checked (add --check)"
    console.print(f"Invariants: {checked}.", highlight=False)
    _show_lines(console, "Notes of the invariant checker", list(run.check.notes) if run.check else [])
    _show_lines(console, "Problems", list(summary.problems))


def json_from_summary(summary: ReplaySummary, *, version: str) -> dict[str, Any]:
    """Return the summary as JSON, with the keys of every summary of the project; `metrics` are in trace seconds."""
    run, workload = summary.run, summary.run.workload
    return {
        "schema": 1,
        "version": version,
        "command": "replay",
        "workload": {
            "trace": workload.trace,
            "rule": workload.rule,
            "cores": workload.cores,
            "rows": workload.rows,
            "rows_left_out": workload.left_out,
            "durations_cut": workload.durations_cut,
            "was_sorted": workload.was_sorted,
        },
        "cluster": run.cluster,
        "racks": run.racks,
        "costs": run.costs,
        "speed": run.speed,
        "warmup_s": 0,
        "drain_s": 0,
        "runs": [{"policy": run.policy, "without": [], "seed": workload.seed, "metrics": dict(summary.metrics)}],
        "real": dict(summary.real),
        "outcomes": {outcome.value: count for outcome, count in summary.counts.items()},
        "waited": [
            {"longer_than": one.longer_than, "jobs": one.jobs, "said_why": one.said_why} for one in summary.waited
        ],
        "pending": [{"code": code, "jobs": jobs, "example": example} for code, jobs, example in summary.pending],
        "changes": {change.name.lower(): count for change, count in workload.changes.items()},
        "skipped": [{"line": bad.line, "sentence": bad.sentence} for bad in workload.skipped],
        "refused": [
            {"line": one.row.line, "job_id": one.row.job_id, "sentence": one.sentence} for one in workload.refused
        ],
        "check": run.check.as_json() if run.check else None,
        "problems": list(summary.problems),
        "jobs": [_json_from_job(job, run) for job in run.jobs],
    }


def _json_from_job(job: FollowedJob, run: ReplayRun) -> dict[str, Any]:
    row, history = job.submission.gang.row, job.history
    return {
        "name": job.submission.name,
        "job_id": row.job_id,
        "line": row.line,
        "kind": "cpu" if job.submission.is_cpu_job else "gpu",
        "user": row.user,
        "namespace": job.submission.namespace,
        "outcome": job.outcome.value,
        "replicas": job.submission.gang.replicas,
        "gpus": job.submission.gang.gpus,
        "cpus_per_replica": job.submission.gang.cpus_per_replica,
        "run_s": row.duration_s / run.speed,
        "trace": _trace_time(job, run),
        "reported": _reported(job, run),
        "submitted_s": job.sent.sent_s - run.began_s,
        "lag_s": job.sent.lag_s,
        "placement_wait_s": job.placement_wait_s,
        "start_wait_s": job.start_wait_s,
        "completion_s": job.completion_s,
        "attempts": history.attempt if history else 0,
        "resumes": job.submission.resumes,
        "stops": history.stops if history else 0,
        "waited_again_s": history.waited_again_s if history else 0.0,
        "nodes": list(history.nodes) if history else [],
        "reasons": [
            {"code": reason.code, "message": reason.message, "seen_s": reason.seen_s - run.began_s}
            for reason in job.reasons
        ],
        "rejected": job.sent.refusal,
    }


def _trace_time(job: FollowedJob, run: ReplayRun) -> dict[str, Any]:
    """Return the job in trace seconds, as in the simulator's `jobs.csv.gz`: it starts when it is placed."""
    row, wait_s = job.submission.gang.row, job.placement_wait_s
    first_s = row.submit_s - job.submission.at_s * run.speed
    placed_s = None if wait_s is None else job.sent.sent_s + wait_s - run.began_s
    return {
        "submit_s": row.submit_s,
        "work_s": row.duration_s,
        "wait_s": None if wait_s is None else wait_s * run.speed,
        "start_s": None if placed_s is None else first_s + placed_s * run.speed,
    }


def _reported(job: FollowedJob, run: ReplayRun) -> dict[str, float | None]:
    """Return the moments that Coda wrote, by its own clocks, and when the pods were seen ended.

    All in real seconds since the replay began."""
    moments = job.history.reported if job.history else Moments()
    return {
        name: None if moment_s is None else moment_s - run.began_s
        for name, moment_s in (
            ("queued_s", moments.queued_s),
            ("placed_s", moments.placed_s),
            ("started_s", moments.started_s),
            ("freed_s", job.history.freed_s if job.history else None),
            ("finished_s", moments.finished_s),
        )
    }


def _skipped(workload: Workload) -> list[str]:
    return [f"{workload.trace}:{bad.line}: {bad.sentence}" for bad in workload.skipped]


def _refused(summary: ReplaySummary) -> list[str]:
    workload = summary.run.workload
    by_rule = [f"{workload.trace}:{one.row.line}: {one.row.job_id} {one.sentence}" for one in workload.refused]
    by_coda = [
        f"{workload.trace}:{job.submission.gang.row.line}: {job.submission.name}: {job.reasons[-1].message}"
        for job in summary.run.jobs
        if job.outcome is JobOutcome.REFUSED
    ]
    return by_rule + by_coda


def _show_lines(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(Text(f"{title} ({len(lines)}):", style="bold"))
    for line in lines[:SHOWN]:
        console.print(Text(f"  {line}"), soft_wrap=True)
    if len(lines) > SHOWN:
        console.print(f"  ... and {len(lines) - SHOWN} more (all of them with --out FILE)", highlight=False)


def _jobs_table(summary: ReplaySummary) -> Table:
    run, workload = summary.run, summary.run.workload
    table = Table(title=f"{workload.trace} on {run.cluster} at speed {run.speed:g}", show_header=False)
    table.add_row("rule", Text(workload.rule))
    table.add_row("cores of rows without any", Text(workload.cores))
    order = "" if workload.was_sorted else ", sorted by us"
    table.add_row("rows", f"{workload.rows} read{order}, {workload.left_out} left out, {len(workload.skipped)} skipped")
    changes = ", ".join(f"{change.value}: {count}" for change, count in workload.changes.items())
    table.add_row("rows changed", f"{workload.rows_changed}{f' ({changes})' if changes else ''}")
    table.add_row("run times cut", str(workload.durations_cut))
    table.add_row("jobs submitted", str(len(run.jobs)))
    for outcome, count in summary.counts.items():
        extra = (
            f", and {counted(len(workload.refused), 'row')} before submitting" if outcome is JobOutcome.REFUSED else ""
        )
        table.add_row(f"jobs {outcome.value}", f"{count}{extra}")
    table.add_row("wall time", duration_from_seconds(run.ended_s - run.began_s))
    return table


def _waits_table(summary: ReplaySummary, kind: str) -> Table:
    table = Table(title=f"Waits of {kind.upper()} jobs, from submission")
    table.add_column("until")
    for column in ("p50", "p90", "p99", "mean"):
        table.add_column(column, justify="right")
    for until, prefix in (("placed", f"{kind}_placement"), ("started", kind)):
        for clock, values in (("trace time", summary.metrics), ("real time", summary.real)):
            cells = [_span(values[f"{prefix}_wait_{name}_s"]) for name in ("p50", "p90", "p99", "mean")]
            table.add_row(f"{until}, {clock}", *cells)
    shares = [f"{name} {_share(summary.metrics[f'{kind}_started_{name}'])}" for name in ("10s", "3min", "10min", "1h")]
    stops = f"; gave their cores back: {summary.metrics['aborts']} times" if kind == "cpu" else ""
    table.caption = f"started within (trace time): {', '.join(shares)}{stops}"
    return table


def _waited_table(summary: ReplaySummary) -> Table:
    table = Table(title="Jobs that waited (trace time)")
    table.add_column("waited")
    table.add_column("jobs", justify="right")
    table.add_column("said why", justify="right")
    for one in summary.waited:
        waited = one.longer_than if one.longer_than == AT_ALL else f"longer than {one.longer_than}"
        table.add_row(waited, str(one.jobs), str(one.said_why))
    return table


def _reasons_table(summary: ReplaySummary) -> Table:
    table = Table(title="Why they waited")
    table.add_column("reason", no_wrap=True)
    table.add_column("jobs", justify="right")
    table.add_column("for example", overflow="fold")
    for code, jobs, example in summary.pending:
        table.add_row(code, str(jobs), Text(example))
    return table


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else duration_from_seconds(seconds)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
