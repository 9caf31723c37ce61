"""Takes Coda out of a cluster: `python -m coda_operator.uninstall`, the chart's pre-delete hook.

It may be run again at any time, and begins where it stopped. Read `removal` (the order), then `training_jobs`,
`waiting_pods` (what becomes of pods that only Coda would have started) and `leftovers`.
"""
