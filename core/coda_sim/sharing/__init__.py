"""Simulates jobs that share GPUs: what they do to each other (`pair_speed`), and who shares with whom, by the core.

Read `model_table` (the jobs), `pair_speed`, then the three studies: `one_gpu` (two jobs on one GPU, AntMan's tables),
`job_sets` (ten jobs at once, Xonar's) and `cluster_run` (a trace on a cluster, AntMan's). Nothing here knows cores."""
