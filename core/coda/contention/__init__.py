"""The contention eliminator: who is throttled for whom, and when that ends. Nothing is written here.

Read `measurements` (what may be acted on), `reference` (is a training job slowed?), `throttles` (one step),
`per_socket` (when), then `eliminator` (a node).
"""
