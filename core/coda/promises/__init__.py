"""A promise with a price: a job that has waited too long is promised a start, and what this keeps idle is bounded.

Nothing starts here. Read `promise_book` (what is remembered of each promise, and its price), then `expected_ends`,
`node_ends`, `own_share` and `earliest_start` (where the job can start first), and `reserved_nodes` (which nodes are
kept, and for how long). `overdue_line` says whom a cycle looks at, `promise_victims` who stops for the job if its price
is too low, and `hold` keeps others from what is kept, during one cycle; `withheld` does so for jobs without a promise.
"""

from __future__ import annotations

from coda.promises.hold import PromiseHold
from coda.promises.overdue_line import in_turn, overdue
from coda.promises.promise_book import Promise, PromiseBook, promise_text
from coda.promises.promise_victims import stopped_for_promise
from coda.promises.reserved_nodes import Kept, keep_nodes
from coda.promises.withheld import Withheld

__all__ = [
    "Kept",
    "Promise",
    "PromiseBook",
    "PromiseHold",
    "Withheld",
    "in_turn",
    "keep_nodes",
    "overdue",
    "promise_text",
    "stopped_for_promise",
]
