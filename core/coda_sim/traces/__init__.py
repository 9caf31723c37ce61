"""Job traces: files in several formats, read into rows. Nothing here knows a policy or a cluster.

Read `trace` (the values), `fields` and `text_lines` (checked text), then the formats `csv_formats` and `philly` (with
`json_list`), `reader` (the entry), `selection` and `request_table`.
"""

from __future__ import annotations

from coda_sim.traces.reader import read_trace
from coda_sim.traces.request_table import read_request_table
from coda_sim.traces.selection import Selected, Selection, days_from_window, select
from coda_sim.traces.trace import Format, JobKind, OnError, RecordedStatus, Row, Trace

__all__ = [
    "Format",
    "JobKind",
    "OnError",
    "RecordedStatus",
    "Row",
    "Selected",
    "Selection",
    "Trace",
    "days_from_window",
    "read_request_table",
    "read_trace",
    "select",
]
