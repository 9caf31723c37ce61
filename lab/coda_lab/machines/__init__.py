"""The agent's simulated backend: emulated machines in real time, and the real agent working on one through a socket.

The agent lives in a process of its own, so that it can be killed while the machine, and what was done to it, stays.
"""
