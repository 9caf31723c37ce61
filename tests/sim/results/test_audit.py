"""Every policy's run passes the independent audit, and the audit finds what was falsified."""

import ast
import csv
import gzip
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from coda.policy import POLICIES
from coda_sim.engine import RunLog, nodes_of_shape
from coda_sim.results import audit
from coda_sim.results.audit import AuditedJob, breaches, measures, read_jobs
from coda_sim.results.job_records import write_records
from coda_sim.results.metrics import metrics_of, window_of
from coda_sim.workload import MonthConfig, shape_from_text
from coda_sim.workload.cluster_shape import GIB
from coda_sim.workload.month import coda_month
from tests.sim.simulating import simulated_under

pytestmark = pytest.mark.heavy

CLUSTER = "6x8x28x224,8x4x28x112"
SIZES = {
    node.name: (node.allocatable.gpus, node.allocatable.cpu_m // 1000, node.allocatable.memory_bytes)
    for node in nodes_of_shape(shape_from_text(CLUSTER))
}


@cache
def busy_day(policy: str) -> RunLog:
    return simulated_day(policy)


def simulated_day(policy: str) -> RunLog:
    rows = coda_month(MonthConfig(days=1, gpu_jobs=200, cpu_jobs=600), seed=5)
    return simulated_under(policy, [replace(one, memory_gib=5.0 * (one.cpus or 1)) for one in rows], CLUSTER)


def audited(log: RunLog, folder: Path) -> list[AuditedJob]:
    write_records(log, folder / "jobs.csv.gz")
    return read_jobs(folder / "jobs.csv.gz")


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_over_commits_or_loses_work_and_the_measures_are_found_again(policy: str, tmp_path: Path) -> None:
    log = busy_day(policy)
    jobs = audited(log, tmp_path)
    assert breaches(jobs, SIZES) == []
    window = window_of([job.submit_s for job in jobs], warmup_s=3600.0, drain_s=1800.0)
    found, metrics = measures(jobs, log.gpus, log.cores, window.from_s, window.to_s), metrics_of(log, window)
    assert len(found) >= 5
    for name, value in found.items():
        assert value
        assert metrics[name] == pytest.approx(value, rel=1e-9, abs=0), name


def falsified(source: Path, target: Path, change: Callable[[dict[str, str]], None]) -> list[AuditedJob]:
    with gzip.open(source, "rt", newline="") as text:
        lines = list(csv.DictReader(text))
    for line in lines:
        change(line)
    with gzip.open(target, "wt", newline="") as text:
        writer = csv.DictWriter(text, lines[0].keys())
        writer.writeheader()
        writer.writerows(lines)
    return read_jobs(target)


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("node", "node-0001", "node-0001 holds"),
        ("node", "elsewhere", "elsewhere is no node of the cluster"),
        ("done_s", "1.0", "ended after 1.0 s of"),
        ("start_s", "0.0", "ran before it was submitted"),
        ("cores", "0", "held other GPUs than it asked for, or no core"),
        ("gpus", "9", "held other GPUs than it asked for"),
        ("cores", "29", "29 cores"),
        ("memory_bytes", str(225 * GIB), f"{225 * GIB} bytes of memory"),
    ],
)
def test_the_audit_finds_what_cannot_be(column: str, value: str, sentence: str, tmp_path: Path) -> None:
    audited(busy_day("fifo-skip"), tmp_path)
    jobs = falsified(tmp_path / "jobs.csv.gz", tmp_path / "false.csv.gz", lambda line: line.update({column: value}))
    assert any(sentence in breach for breach in breaches(jobs, SIZES))


def test_the_audit_imports_nothing_of_the_simulator() -> None:
    tree = ast.parse(Path(audit.__file__).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("coda") for name in imported)


def test_the_same_log_gives_the_same_bytes(tmp_path: Path) -> None:
    write_records(busy_day("fifo-skip"), tmp_path / "one.csv.gz")
    write_records(simulated_day("fifo-skip"), tmp_path / "two.csv.gz")
    assert (tmp_path / "one.csv.gz").read_bytes() == (tmp_path / "two.csv.gz").read_bytes()
