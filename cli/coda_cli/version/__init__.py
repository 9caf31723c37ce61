"""`coda version`: which versions run here and in the cluster.

Read `parts` (what is read, and what differs), then `command`.
"""
