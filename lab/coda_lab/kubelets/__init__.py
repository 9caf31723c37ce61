"""Simulated kubelets: one process that behaves, towards the API server, like the kubelets of up to 5000 nodes.

Nothing here knows Coda's jobs or placements: it is the referee of over-commit, so it counts for itself. All decisions
(admission, the life of a pod, a silent node) are synchronous and get the time as a value. Only `node_heartbeats`,
`list_watch` and parts of `pods` talk. Read `nodes`, `admission`, `behaviour`, `machine` (one node and its pods),
`fleet` (all of them), then `resize_values`, `resize_rules`, `resizer` and `pods`.
"""
