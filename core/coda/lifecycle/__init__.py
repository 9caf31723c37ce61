"""The life cycle of one job: from its pods and its status to the next step.

Nothing here sees a second job, knows Kubernetes' JSON or waits: deadlines come back as `wake_s`. Read `state` (the
values) and `transitions` (changes that several phases share), then `steps` (one function per phase). `failures` and
`deadlines` answer questions for them. `evidence` says what must be read before a step, `news` what deserves an event.
"""
