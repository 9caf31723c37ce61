"""The tables of a report, and the records of a trace, know every word that they may meet."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from coda.history.delay_causes import DelayCause
from coda.history.report import report
from coda_cli.history.tables import drawn, word_tables
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


def test_a_table_has_nothing_that_a_terminal_obeys() -> None:
    told = StringIO()
    owned = record(1, owner="ann\x1b[2J")
    Console(file=told, width=120).print(drawn(word_tables(report([owned]), top=10)))
    assert "ann\ufffd[2J" in told.getvalue()
    assert "\x1b" not in told.getvalue()


@pytest.mark.parametrize("status", RecordedStatus)
def test_every_status_of_a_trace_is_an_ending(tmp_path: Path, status: RecordedStatus) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADER}a,ann,lab,0,600,1,4,,1,{status.value},gpu\n")
    (row,) = read_trace(trace, on_error=OnError.REFUSE).rows
    (found,) = records((row,), "trace", 0.0, {})
    assert (row.status, found.run_s) == (status, 600.0)
