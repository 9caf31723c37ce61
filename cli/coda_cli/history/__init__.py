"""The history store for people: `coda report` says what a span looked like, `coda history` loads and writes traces.

Read `store_option` (which store), `tables` (a report in words), then the commands; `trace_records` turns rows of a
trace into records, `export_command` records into rows.
"""
