"""A race: gangs and foreign pods want the same nodes at 150 % load, and nothing is killed.

`python -m coda_lab.experiments.race` (`make race`) runs it. With one kube-scheduler process the extender guards the
plans, and no pod may ever be refused by a kubelet. With the foreign pods on a scheduler of their own, which knows
nothing of plans, both may bind to the same room; kubelets refuse whoever comes second, and an attempt that lost a
rank so must be rolled back whole. `attempts` follows every attempt of every gang, `report` judges. The load is
`coda_lab.experiments.load`'s, the invariants are `coda_lab.checker`'s.
"""
