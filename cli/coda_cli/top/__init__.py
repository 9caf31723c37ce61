"""`coda top`: who uses which nodes, and what is throttled.

Read `cluster_use` (objects to numbers), then `command` (reads the cluster, and draws).
"""
