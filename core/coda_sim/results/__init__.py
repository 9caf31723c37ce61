"""The metrics of a run, and the files that hold them: `summary.json`, `timing.json` and `jobs.csv.gz`.

Nothing here runs a simulation. Read `statistics` and `metrics`, then `series` (what plots show), `summary` and
`job_records`. `audit` checks a run from its files alone. The package exports nothing, so that `audit` loads no part of
the simulator.
"""
