"""This machine: processes, ports, paths, locks and temporary folders. All other packages of the lab use it.

It knows nothing of Kubernetes but the version that a report names. Read `errors`, `paths` and `processes` first.
"""
