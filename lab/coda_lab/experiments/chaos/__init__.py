"""Chaos: a local control plane under load while its parts are killed, stopped and cut off, and an account at the end.

`python -m coda_lab.experiments.chaos` (`make chaos`) runs it. What happens when is decided in `schedule` and `load`,
pure functions of a seed; `striking` carries the faults out and times the recoveries, `driving` submits the load,
`account` knows what became of every job. The invariants are `coda_lab.checker`'s. What must not live here: any
repair. Parts that end are started again, as a kubelet would; nothing else is ever mended.
"""
