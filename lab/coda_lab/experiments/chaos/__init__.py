"""Chaos: a local control plane under load whose parts are killed, stopped and cut off, with an account at the end.

`python -m coda_lab.experiments.chaos` (`make chaos`) runs it. Nothing is repaired here: parts that end are started
again, as a kubelet would, and nothing else. Read `schedule` (which fault when, a pure function of a seed), `faults`
(carries them out and times the recoveries, by `progress_signs` and through `proxy`), `run`, then `report`.
Accidents of clusters and of their administrators come between the faults: `accidents` (the schedule), `happenings`,
`restore`, `jumping_clock`. The load and the account of every job are `coda_lab.experiments.load`'s, the invariants
`coda_lab.checker`'s.
"""
