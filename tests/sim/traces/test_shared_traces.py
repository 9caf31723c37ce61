"""The real traces, where a checkout has them beside it: their counts as documented with them."""

from dataclasses import replace
from pathlib import Path

import pytest

from coda_sim.traces import Format, JobKind, OnError, Selection, read_request_table, read_trace, select
from coda_sim.traces.reader import DAY_S
from coda_sim.workload import Cores, gangs_from_rows, shape_from_text

TRACES = Path(__file__).parents[4] / "shared" / "traces"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside this checkout")


def test_the_first_300_gpu_jobs_of_helios_all_fit_twelve_nodes() -> None:
    trace = read_trace(TRACES / "helios_venus_mixed_13d.csv.gz", on_error=OnError.REFUSE)
    assert len(trace.rows) == 10326
    assert sum(row.kind is JobKind.GPU for row in trace.rows) == 7559
    selected = select(trace.rows, Selection(gpu_jobs_only=True, limit=300, max_duration_s=21600), trace.path)
    gangs, refused = gangs_from_rows(selected.rows, shape_from_text("12x8x48"), Cores())
    assert (len(gangs), len(refused)) == (300, 0)


def test_the_openb_jobs_of_88_cores_are_split_over_28_core_nodes() -> None:
    trace = read_trace(TRACES / "openb_2023_default.csv.gz", on_error=OnError.REFUSE)
    selected = select(
        trace.rows, Selection(gpu_jobs_only=True, limit=300, compress=20, max_duration_s=21600), trace.path
    )
    gangs, refused = gangs_from_rows(selected.rows, shape_from_text("12x5x28"), Cores())
    large = [gang for gang in gangs if gang.row.cpus == 88.0]
    assert [(gang.replicas, gang.gpus_per_replica, gang.cpus_per_replica) for gang in large] == [(4, 2, 22), (4, 2, 22)]
    assert (len(gangs), len(refused)) == (300, 0)


def test_openb_as_published_and_in_the_common_schema_say_the_same() -> None:
    """The common file leaves out what its README names: the pods never scheduled, and the 27 of before day 115."""
    day_115_s = 115 * DAY_S
    upstream = read_trace(TRACES / "openb_2023_raw_pods.csv.gz", on_error=OnError.REFUSE)
    common = read_trace(TRACES / "openb_2023_default.csv.gz", on_error=OnError.REFUSE)
    assert (upstream.format, common.format) == (Format.OPENB, Format.COMMON)
    assert len(upstream.bad) == 897
    assert all(row.is_benign and "Pending" in row.sentence for row in upstream.bad)
    early = [row for row in upstream.rows if row.submit_s < day_115_s]
    assert len(early) == 27
    moved = {
        row.job_id: replace(row, submit_s=row.submit_s - day_115_s, line=0, wait_s=None)  # waits are left out, too
        for row in upstream.rows[len(early) :]
    }
    assert all(row.wait_s is not None and row.wait_s >= 0 for row in upstream.rows)
    assert moved == {row.job_id: replace(row, line=0) for row in common.rows}
    assert sum("a share of one GPU" in one.sentence for one in upstream.amended) == 2573


def test_philly_gets_its_cores_from_the_request_table() -> None:
    trace = read_trace(TRACES / "philly_2017-10_gpu.csv.gz", on_error=OnError.REFUSE)
    table = read_request_table(TRACES / "helios_venus_13d_request_table.csv.gz")
    gangs, refused = gangs_from_rows(trace.rows[:3000], shape_from_text("321x2x48,231x8x48"), Cores(table=table))
    assert len(gangs) + len(refused) == 3000
    assert all(gang.changes for gang in gangs)
    assert len({gang.cpus_per_replica for gang in gangs}) > 3
