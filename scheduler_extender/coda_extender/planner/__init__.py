"""The planner: one leader that decides and writes placements. Read `planner`, then `cycle`."""
