"""The vocabulary: the values that every decision takes and returns.

No decision is made here, and nothing here knows JSON. Read `resources` and `constraints`, then `job` (with the
glossary), `world` and `decision`. `live_placement`, `capacity` and `consistency` answer questions about them.
The face has the most used names; import the rest from its module.
"""
