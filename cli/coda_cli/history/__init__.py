"""The history store for people: `coda report` says what a span looked like, `coda history import` loads a trace.

Read `store_option` (which store), `tables` (a report in words), then the two commands; `trace_records` turns rows of a
trace into records.
"""
