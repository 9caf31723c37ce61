"""Turns what Slurm's `sacct` says of finished jobs into a trace for `coda simulate` (docs/own-traces.md).

    sacct --allusers --allocations --parsable2 --noconvert --starttime 2026-05-01 --endtime 2026-06-01 \\
      --format JobID,User,Account,Submit,Start,End,ElapsedRaw,State,AllocTRES > jobs.txt
    python from_sacct.py --since 2026-05-01 < jobs.txt > jobs.csv

sacct lists jobs by their end, also those that ran when the span began. These are left out, since the others of their
time are not there: what was submitted before `--since`, or without it before the day of the first end.

It needs Python 3.11 and nothing else. What it leaves out is counted on stderr, by reason.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TextIO

COLUMNS = (
    "job_id", "user", "virtual_cluster", "submit_s", "duration_s", "gpus", "cpus", "memory_gib", "nodes_requested",
    "status", "kind", "wait_s",
)  # fmt: skip
NEEDED = ("JobID", "User", "Account", "Submit", "Start", "End", "State")
STATUS_BY_STATE = {
    "COMPLETED": "passed",
    "CANCELLED": "killed",
    "PREEMPTED": "killed",
    "FAILED": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
}
GIB_BY_UNIT = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")


class LeftOut(Exception):
    """Why a line is no job of the trace."""


def main(source: TextIO, target: TextIO, notes: TextIO, since: datetime | None = None) -> None:
    """Write the trace, by submission; second 0 is midnight before the first one. `since`: where the span begins."""
    lines = csv.DictReader(source, delimiter="|", quoting=csv.QUOTE_NONE)
    if missing := [name for name in NEEDED if name not in (lines.fieldnames or ())]:
        raise SystemExit(f"sacct's header lacks {', '.join(missing)}: use --parsable2, and --format as above")
    found: list[tuple[datetime, dict[str, object]]] = []
    ends: list[datetime] = []
    left_out: Counter[str] = Counter()
    for line in lines:
        try:
            found.append(job_from_line(line))
            ends.append(datetime.fromisoformat(line["End"]).replace(tzinfo=UTC))
        except LeftOut as reason:
            left_out[str(reason)] += 1
    begins = since or midnight(min(ends, default=datetime.min.replace(tzinfo=UTC)))
    jobs = [job for job in found if job[0] >= begins]
    if len(jobs) < len(found):
        how = "(--since)" if since else "the day of the first end (--since)"
        text = f"{begins:%Y-%m-%dT%H:%M:%S}{' ' if since else ', '}{how}"
        left_out[f"submitted before {text}"] = len(found) - len(jobs)
    write(jobs, target)
    print(f"{len(jobs)} jobs", file=notes)
    for why, count in left_out.most_common():
        print(f"{count} left out: {why}", file=notes)


def job_from_line(line: Mapping[str, str]) -> tuple[datetime, dict[str, object]]:
    """Return when the job was submitted, and its row without `submit_s`."""
    if None in line.values():
        raise LeftOut("a line that is cut off")
    if "." in line["JobID"]:
        raise LeftOut("steps of jobs: use --allocations")
    state = line["State"].split(" ")[0]  # CANCELLED by 1234
    if state not in STATUS_BY_STATE:
        raise LeftOut(f"state {state}: it has not ended")
    submitted, started = moment(line["Submit"]), moment(line["Start"])
    if submitted is None:
        raise LeftOut("no time of submission")
    if started is None:
        raise LeftOut("it never started")
    if moment(line["End"]) is None:
        raise LeftOut("no time of its end")
    asked = tres(line.get("AllocTRES") or line.get("ReqTRES") or "")
    gpus = gpus_of(asked)
    return submitted, {
        "job_id": line["JobID"],  # 123_4 of an array
        "user": line["User"],
        "virtual_cluster": line["Account"],
        "duration_s": max(1, elapsed_s(line)),
        "gpus": gpus,
        "cpus": asked.get("cpu") or line.get("AllocCPUS", ""),
        "memory_gib": memory_gib(asked.get("mem", "")),
        "nodes_requested": asked.get("node") or line.get("AllocNodes", ""),
        "status": STATUS_BY_STATE[state],
        "kind": "gpu" if gpus else "cpu",
        "wait_s": max(0, round((started - submitted).total_seconds())),
    }


def write(jobs: Iterable[tuple[datetime, dict[str, object]]], target: TextIO) -> None:
    """Write the rows by submission."""
    ordered = sorted(jobs, key=lambda job: (job[0], str(job[1]["job_id"])))
    writer = csv.DictWriter(target, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for submitted, row in ordered:
        writer.writerow({**row, "submit_s": round((submitted - midnight(ordered[0][0])).total_seconds())})


def midnight(time: datetime) -> datetime:
    """Return when its day began."""
    return time.replace(hour=0, minute=0, second=0, microsecond=0)


def moment(text: str) -> datetime | None:
    """Return a time of sacct, on its own wall clock; None for Unknown and None."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def tres(text: str) -> dict[str, str]:
    """Return `billing=8,cpu=32,gres/gpu:a100=4` by name."""
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def gpus_of(asked: Mapping[str, str]) -> int:
    """Return all GPUs: `gres/gpu` is their sum where Slurm says it, beside those by type."""
    amounts = {name: amount for name, amount in asked.items() if name.partition(":")[0] == "gres/gpu"}
    if not all(amount.isdigit() for amount in amounts.values()):
        raise LeftOut("a line that is cut off")
    return int(amounts["gres/gpu"]) if "gres/gpu" in amounts else sum(map(int, amounts.values()))


def memory_gib(text: str) -> str:
    """Return `256G` or `262144M` in GiB."""
    found = MEMORY.fullmatch(text)
    return f"{float(found[1]) * GIB_BY_UNIT[found[2]]:g}" if found else ""


def elapsed_s(line: Mapping[str, str]) -> int:
    """Return the run time: ElapsedRaw in seconds, or Elapsed as `1-02:03:04`."""
    if (raw := line.get("ElapsedRaw", "")).isdigit():
        return int(raw)
    found = ELAPSED.fullmatch(line.get("Elapsed", ""))
    if found is None:
        raise LeftOut("no run time: ask for ElapsedRaw or Elapsed")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 86_400 * days + 3_600 * hours + 60 * minutes + seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="sacct's lines (stdin) as a trace (stdout), see docs/own-traces.md")
    parser.add_argument("--since", type=datetime.fromisoformat, help="sacct's --starttime, as 2026-05-01")
    start = parser.parse_args().since
    main(sys.stdin, sys.stdout, sys.stderr, start and start.replace(tzinfo=UTC))
