"""The Kubernetes edge, shared by the shells: only here is the JSON of objects known.

It decides nothing, and imports no shell. Read `objects` (JSON and model), `api` (the API server), `cluster_state` (the
cluster as the planner keeps it), and `settings` (those that all programs share).
"""
