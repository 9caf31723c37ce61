"""Simulates jobs that share GPUs: what they do to each other (`pair_speed`), and who shares with whom, by the core.

Read `model_table` (the jobs), `pair_speed`, then `job_sets` (ten jobs at once, Xonar's), `gpu_trace` and `cluster_run`
(a trace on a cluster, AntMan's), and `studies`, which is what the command line calls. Nothing here knows cores."""
