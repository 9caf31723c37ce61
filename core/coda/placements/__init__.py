"""Placements that are written to jobs: reviewed by the planner, guarded by the filter. Nothing new is placed here.

Read `review`, then `guard` and `wait_limits`.
"""
