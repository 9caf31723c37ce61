"""What the benchmarks share: clusters, loads, arms, readings of usage, and the table of answers."""
