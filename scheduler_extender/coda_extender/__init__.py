"""The extender: the planner that decides, and the guard that kube-scheduler asks. Only it writes placements."""
