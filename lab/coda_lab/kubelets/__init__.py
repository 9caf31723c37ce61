"""Simulated kubelets: one process that behaves, towards the API server, like the kubelets of up to 5000 nodes.

Idea: everything that decides (admission, the life of a pod, what a silent node does) is synchronous and takes the time
as a value; only `registering`, `reporting`, `following` and `serving` talk. Nothing here knows Coda's jobs or plans: it
is the referee of over-commit, so it counts for itself.
"""
