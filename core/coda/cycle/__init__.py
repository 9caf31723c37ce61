"""One scheduling cycle: what starts where, what is resized or stopped, and why the rest waits. Nothing is written here.

Read `decide` first: its numbered steps. Then `resize_grants` (step 2), `reservation` (step 3), `starts` with its
`start_ways` and `victims` (steps 3 and 4), and `wait_reasons` (step 5). `planner_cycle` is the whole cycle of the
live planner.
"""

from coda.cycle.decide import decide, decide_around
from coda.cycle.planner_cycle import CycleResult, CycleSnapshot, review_snapshot, run_cycle
from coda.cycle.resize_grants import answer_from_denial, answer_from_grant

__all__ = [
    "CycleResult",
    "CycleSnapshot",
    "answer_from_denial",
    "answer_from_grant",
    "decide",
    "decide_around",
    "review_snapshot",
    "run_cycle",
]
