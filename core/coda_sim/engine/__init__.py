"""One simulated run: events in virtual time around the planner's own `decide`. Nothing is measured or reported here.

Read `event_queue` and `job_run`, then `simulation`.
"""
