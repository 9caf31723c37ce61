"""The experiments of `real_sharing.py`: two jobs on one real GPU.

Read `job` (what a user runs), `node` (who starts it and orders), then `memory`, `pace`, `pairs` and `knee`."""
