"""The operator: a kopf shell that takes TrainingJobs from accepted to finished, by `coda.lifecycle.steps`.

handlers -> workers -> reconciling: read (`observing`), decide (`coda.lifecycle.steps`), write (`gang_pods`,
`reporting`).
"""
