"""The contention eliminator: who is throttled for whom, and when that ends. Nothing is written here.

Read `reference` (is a training job slowed?), `throttles` (one step), `per_socket` (when), then `eliminator` (a node).
"""
