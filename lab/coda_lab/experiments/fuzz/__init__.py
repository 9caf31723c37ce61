"""Requests that no scheduler would send, against a running extender: seeded, counted, and judged.

Read `hostile_requests` (the bytes), `sender`, `honest_client` (a scheduler beside them, whose answers are checked),
`run`, then `report`.
"""
