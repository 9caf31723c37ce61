"""`coda demo`: the example jobs on a local control plane.

Read `examples` (the files), `job_table` (what is shown), then `command` (the run).
"""
