"""What is simulated: jobs from a trace or a generated month, the models they train, and the shape of the cluster.

Nothing here runs or decides. Read `cluster_shape` and `gangs` (from row to job), `model_profiles`, `speed` and
`job_models` (what jobs train), `month_config` and `month` (the generated month), then `workload`: the entry.
"""
