"""The guard: answers kube-scheduler's filter and prioritize calls from what one replica knows.

It may not wait, write, or ask the API server; its verdicts are those of `coda.placements.filter_rules`. What it
remembers may be lost at any time. Read `guard`, `node_capacity`, `capacity_index`, `in_flight`, `unconfirmed_binds`,
`cluster_use`.
"""
