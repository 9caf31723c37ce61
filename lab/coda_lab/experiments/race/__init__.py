"""A race: gangs and foreign pods want the same nodes at 150 % load, and nothing is killed.

`python -m coda_lab.experiments.race` (`make race`) runs it. With one kube-scheduler process the extender guards the
placements, and a kubelet may never refuse a pod. With the foreign pods on a scheduler of their own, which knows no
placements, both may bind to the same capacity. Then kubelets refuse the second pod, and an attempt that lost a rank in
this way must be rolled back whole. Read `attempts` and `refusals` (what became of each attempt), `run`, then `report`.
The load is `coda_lab.experiments.load`'s, the invariants are `coda_lab.checker`'s.
"""
