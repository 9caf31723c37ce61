"""Experiments 4 and 5: what the library costs when it does nothing, and how well it keeps a share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from shared_gpu.gpu import Gpu
from shared_gpu.node import Boss, Node, Ran

ROUNDS = 3
SHARES = (1000, 800, 500, 200)
SECONDS = 2.5


def launch_overhead(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """4: the mini-batch with the library and without, in turn."""
    for model, seconds in (("tiny", 3), ("resnet50", 4)):
        plain, ours = [], []
        for _ in range(ROUNDS):
            plain.append(node.start(model, "--seconds", seconds).result().settled_s)
            with Boss(node.socket) as orders:
                job = node.start(model, "--seconds", seconds, pod="o")
                while job.process.poll() is None:
                    orders.hear(0.2)
                ours.append(job.result().settled_s)
        yield {
            "model": model,
            "plain_ms": [round(1e3 * one, 4) for one in plain],
            "with_library_ms": [round(1e3 * one, 4) for one in ours],
            "slower_percent": round(100 * (statistics.median(ours) / statistics.median(plain) - 1), 2),
        }


def pacing_accuracy(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """5: the share that is reached, in points of what is asked, alone on the GPU."""
    for model, more in (("gpt", ()), ("lstm", ()), ("resnet50", ()), ("gpt", ("--compile",)), ("vgg", ())):
        with Boss(node.socket) as orders:
            job = node.start(model, "--seconds", 4 + (SECONDS + 1) * len(SHARES) + 4 * bool(more), *more, pod="o")
            orders.until(lambda said: said.get("type") == "steps" and said.get("count", 0) >= 5, 90)
            orders.listen(1.0)
            spans = []
            for share in SHARES:
                orders.order(share=share)
                orders.listen(1.0)
                began_s = time.monotonic()
                busy = gpu.busy(SECONDS - 0.2)
                orders.listen(0.2)
                spans.append((share, began_s, time.monotonic(), busy))
            controls = {said["control"] for said in orders.heard if "control" in said}
            launches = [(said["launches"], said["count"]) for said in orders.heard if said.get("type") == "steps"]
            ran = ran_to_its_end(node, job)
        full = ran.rate(spans[0][1], spans[0][2])
        yield from (
            {
                "model": " ".join((model, *more)),
                "asked": share / 10,
                "reached": round(100 * ran.rate(began_s, ended_s) / full, 1),
                "busy": round(100 * busy, 1),
                "control": sorted(controls),
                "launches_per_step": round((launches[-1][0] - launches[0][0]) / (launches[-1][1] - launches[0][1])),
            }
            for share, began_s, ended_s, busy in spans
        )


def ran_to_its_end(node: Node, job: Any) -> Ran:
    """What the job printed; the last share may make its last mini-batch slow."""
    ran: Ran = job.result(60)
    node.end()
    return ran
