"""The contention eliminator: which CPU job is throttled for which training job, and when that ends. Nothing is written here.

Read `reference` (is a training job slowed?), `throttles` (one step), `per_socket` (when), then `eliminator` (a node).
"""
