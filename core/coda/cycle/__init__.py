"""One scheduling cycle: what starts where, what is resized or stopped, and why the rest waits. Nothing is written here.

Read `decide` first: its numbered steps. Then `resize_grants` (step 2), `starts` with its `start_ways` and `victims`
(steps 3 and 4; what is kept for whom is in `coda.promises`) and `lent_gpus`, and `wait_reasons` (step 5).
`planner_cycle` is the whole cycle of the live planner, which `judging`, `faults` and `isolation` keep going when an
object cannot be judged, or takes long. `snapshot_replica` is the copy of the cluster that it decides on.
"""

from coda.cycle.decide import decide, decide_around
from coda.cycle.planner_cycle import CycleCache, CycleResult, CycleSnapshot, review_snapshot, run_cycle
from coda.cycle.resize_grants import answer_from_denial, answer_from_grant, answer_from_return
from coda.cycle.snapshot_replica import Part, SnapshotReplica

__all__ = [
    "CycleCache",
    "CycleResult",
    "CycleSnapshot",
    "Part",
    "SnapshotReplica",
    "answer_from_denial",
    "answer_from_grant",
    "answer_from_return",
    "decide",
    "decide_around",
    "review_snapshot",
    "run_cycle",
]
