"""The command line `coda`: options, wiring and words. Decisions, checks and measures live in the packages it calls.

Read `__main__`, then one command: `check`, `local`, `demo/command`, `replay/command` or `simulate/command`.
Commands share `exit_codes`, `trace_options`, `target_cluster`, `job_history` and `progress`.
"""
