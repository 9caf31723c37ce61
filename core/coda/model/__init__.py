"""The values every decision takes and returns. No decision is made here, and nothing knows JSON.

Read `resources` and `constraints`, then `job`, `world` and `decision`. `live_placement`, `capacity` and `consistency`
answer questions about them.
"""
