"""The studies of docs/results.md: cells (one simulation each), the store that keeps them, and the tables made of them.

A table names its cells and writes itself from what they measured; it runs nothing and reads no clock. Read `cells`,
`store`, `performing`, `workloads`, then the tables (`traces`, `month`, `sensitivity`, `ablations`, `eliminator`) with
`wording` and `plots`, and `page`.
"""
