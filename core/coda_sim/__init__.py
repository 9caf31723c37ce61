"""Workloads and what is measured of them: trace files, the rules from row to job, the measures.

Shared by the simulator and by `coda replay`, so that a row becomes the same job in both. Standard library only.
"""
