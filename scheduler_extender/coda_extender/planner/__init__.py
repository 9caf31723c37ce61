"""The planner: the one replica that holds the Lease decides, and writes placements and wait reasons.

All decisions are the core's. Only `status_writer` writes to jobs, and only `leader_label` to pods. Read `planner`,
`cycle`, `placement_writer`, `placement_orders`, `pending_reasons`, `reason_writer`, `status_writer`, `leader_label`.
"""
