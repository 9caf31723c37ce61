"""The operator: a kopf shell that takes TrainingJobs from accepted to finished.

It decides nothing: `coda.lifecycle` does. It writes TrainingJobs, their pods and Services, and only while it holds the
Lease. Read `work_queue` (one job, one step at a time), `view` (what is known), then `reconcile` (one step); `feed` is
kopf, `throttle_recovery` undoes what a dead agent left. `__main__` wires them.
"""
