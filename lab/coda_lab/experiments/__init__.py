"""Experiments on a local control plane. No decision of Coda's is made here, and nothing is repaired.

Read `load` (gangs and foreign pods, what became of each), then `chaos` (parts are killed, stopped and cut off), `race`
(gangs against foreign pods) and `fuzz` (malformed requests against the extender).
"""
