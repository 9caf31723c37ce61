"""Coda's policy core: every decision as a pure function, world in, plan out.

Nothing here waits, reads a clock, draws randomness or talks; standard library only.
Start with `model` (the vocabulary), then `plan.decide` (what starts where, and why
the rest waits) and `lifecycle.next_step` (what one job needs next).
"""
