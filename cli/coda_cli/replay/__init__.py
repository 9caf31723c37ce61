"""`coda replay`: a trace submitted to a control plane, and what became of it.

Read `submissions` (rows to TrainingJobs), `run` (submit and follow), `metrics` and `summary`, then `command`.
"""
