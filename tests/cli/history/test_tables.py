"""The tables of a report, and the records of a trace, know every word that they may meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from coda.history.delay_causes import DelayCause
from coda.history.report import report
from coda_cli.history.tables import word_tables
from coda_cli.history.trace_records import records
from coda_sim.traces import OnError, RecordedStatus, read_trace
from tests.cli.history.test_commands import HEADER
from tests.operator_tests.history.records import record


def test_every_cause_of_delay_has_its_row() -> None:
    waited = record(1, waits=tuple((cause.value, 60.0) for cause in DelayCause))
    (table,) = [table for table in word_tables(report([waited]), top=10) if table.title == "Causes of delay"]
    names = {row[0] for row in table.rows}
    assert len(names) == len(DelayCause)
    assert {"trial", "not seen"} <= names


@pytest.mark.parametrize("status", RecordedStatus)
def test_every_status_of_a_trace_is_an_ending(tmp_path: Path, status: RecordedStatus) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADER}a,ann,lab,0,600,1,4,,1,{status.value},gpu\n")
    (row,) = read_trace(trace, on_error=OnError.REFUSE).rows
    (found,) = records((row,), "trace", 0.0, {})
    assert (row.status, found.run_s) == (status, 600.0)
