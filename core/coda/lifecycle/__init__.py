"""The life cycle of one job: from its pods and its status to the next step. Nothing here sees a second job.

Read `state` and `transitions`, then `steps`; `failures` and `deadlines` answer questions for it.
"""
