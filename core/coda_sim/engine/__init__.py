"""One simulated run: events in virtual time around the planner's own `decide`.

Nothing is measured or reported here. Read `event_queue`, `job_run` and `cluster` (who holds what), `pace` (how fast a
job goes), then `simulation`: the event loop. `allocator_model`, `contention_model` and `spare_cores` connect parts of
the core to it; `log`, `usage_trail` and `idle_causes` record what happens.
"""
