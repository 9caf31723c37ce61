"""The adaptive CPU allocator: how many cores a training job gets. Nothing is measured or resized here.

Read `start_point`, `curve` and `core_search`, then `tuning` (a running job) and `resize` (in place).
"""
