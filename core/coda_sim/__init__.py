"""The simulator: workloads, the planner's own decisions in virtual time, and the metrics of a run.

Standard library only; nothing here knows Kubernetes. `coda replay` uses the workloads and the statistics too, so that
a row becomes the same job in both. Read `traces`, `workload`, `engine` and `results`, then `runs`: the way in.
"""
