"""A load of gangs and foreign pods for a local cluster, how it is kept up, and what became of each job and pod.

Faults, and the purpose of a run, are not here. Read `plans` (what is submitted, pure functions of a seed), `tenants`
(for whom), `driver` (submits it), `watches` and `account` (every end), then `display` and `command_line` (what `chaos`
and `race` show and say). Besides ends, a run may ask whether each stop was for a start (`stops`), whether each wish
for cores was answered (`wishes`), whether the history has every job (`recorded`), and whether neighbours slowed a
guaranteed job (`shared_gpus`, by the model in `gpu_model`).
"""
