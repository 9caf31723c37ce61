"""The adaptive CPU allocator: how many cores a training job gets.

Nothing is measured, granted or resized here, and nothing reads a clock. Read `start_point` (before anything is
measured), `curve` (what was measured) and `core_search` (which count is next), then `resize` (how a grant is carried
out on running pods) and `tuning` (all of it, for one running job).
"""
