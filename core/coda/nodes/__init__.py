"""Which nodes can hold a gang. Nothing here knows the queue, policies or written placements.

Read `eligibility` and `free_capacity`, then `node_groups`, `candidates` and `node_search`; `bottleneck` explains.
"""
