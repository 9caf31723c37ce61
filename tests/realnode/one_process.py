"""Runs inside the real node: the agent, which asks NVML itself.

Outside of tests a process of its own does so, and is killed if it does not answer for 30 s. On a busy machine a Python
that reads its modules through the emulated one takes longer than that to start."""

from __future__ import annotations

from coda_agent.__main__ import main
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.node import Node

if __name__ == "__main__":
    main((), lambda settings, reads_only: Node(settings, gpus=Gpus(), reads_only=reads_only))
