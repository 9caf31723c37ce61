"""The operator: a kopf shell that takes TrainingJobs from accepted to finished, by `coda.lifecycle`.

handlers -> workers -> reconciling: read (`observing`), decide (`coda.lifecycle`), write (`gang_pods`, `reporting`).
"""
