"""Coda's policy core: every decision is a pure function from a world to a `Decision`.

Nothing here waits, reads a clock, draws random numbers or talks to anybody; standard library only. Read the packages
in this order: `model` (the vocabulary), `policy`, `contention`, `allocator`, `nodes`, `cache`, `placements`,
`lifecycle`, `cycle`. The main entries are `cycle.decide` (what starts where, and why the rest waits) and
`lifecycle.next_step` (what one job needs next).
"""
