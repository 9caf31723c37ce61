"""The process that decides: a child of the extender, with a copy of what the planner sees and nothing else.

It never reads or writes the cluster. The extender sends it changes, asks, and writes what it answers. If it hangs or
dies, filter calls are answered all the same, and the next one starts from the whole cluster. Read `messages` (what is
said), `answering` (the child's work), `told_refusals` (why jobs wait, as far as that is news), `__main__` (the child),
then `process` (the extender's end).

The child imports no more than the core: it is a small process. So `process` is not imported here.
"""

from coda_extender.planner_process.messages import (
    AnswerEnd,
    ChangedRefusals,
    Kind,
    Message,
    Orders,
    Question,
    RefusedAlike,
    ReviewOf,
    Values,
    values_in_messages,
)

__all__ = [
    "AnswerEnd",
    "ChangedRefusals",
    "Kind",
    "Message",
    "Orders",
    "Question",
    "RefusedAlike",
    "ReviewOf",
    "Values",
    "values_in_messages",
]
