"""One scheduling cycle: who starts where, who is resized or stopped, and why the rest waits. Nothing is written here.

Read `planner_cycle` and `decide`, then `resize_grants`, `starts`, `reservation`, `refusals` and `wait_reasons`.
"""
