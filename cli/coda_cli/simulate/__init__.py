"""`coda simulate`: policies on a generated month or a trace, in virtual time. The simulator itself is `coda_sim`.

Read `runs`, `account` (what became of the rows), then what shows their results: `comparison`, `plots` and
`html_report`; `command` puts them together.
"""
