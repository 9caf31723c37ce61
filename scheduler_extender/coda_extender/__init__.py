"""The scheduler extender: the planner that decides, and the guard that kube-scheduler asks.

Only this program writes placements. It imports no other shell, and takes every decision from `coda`. Read `guard`,
`cluster`, `http`, `planner`, and `__main__` for the wiring.
"""
