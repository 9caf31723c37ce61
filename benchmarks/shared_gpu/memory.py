"""Experiments 1 to 3 and 10: limits that rise and fall under training, and what host memory costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shared_gpu.gpu import Gpu
from shared_gpu.node import GIB, MIB, Boss, Job, Message, Node, memory_of

STEPS = 40


def same_losses(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """1: a limit that falls and rises twice a second changes no loss."""
    for model in ("gpt", "resnet50"):
        words = (model, "--steps", STEPS, "--idle", 60, "--same")
        plain, again = node.start(*words), node.start(*words)
        with Boss(node.socket) as orders:
            job = node.start(*words, pod="o")
            peak, floor = shown(orders)
            changes, most_host, controls = 0, 0, set()
            while job.process.poll() is None:
                for said in orders.hear(0.5):
                    controls.add(said.get("control"))
                    most_host = max(most_host, memory_of(said)[1])
                    if said.get("type") == "steps":
                        orders.order(device=None if changes % 2 else floor + (peak - floor) // 4)
                        changes += 1
            limited = job.result().losses
        first, second = plain.result().losses, again.result().losses
        yield {
            "model": model,
            "equal": limited == first,
            "equal_without_us": first == second,
            "furthest": furthest(limited, first),
            "furthest_without_us": furthest(first, second),
            "losses": len(limited),
            "changes": changes,
            "most_host_mib": most_host // MIB,
            "control": sorted(map(str, controls - {None})),
        }


def furthest(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two losses, relative."""
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(one, other, strict=True))


def shrink_and_grow(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """2: about 16 GiB of activations to 2 GiB and back, three times; 10: who is charged for the host memory."""
    with Boss(node.socket) as orders:
        job = node.start("slices", "--seconds", 60, pod="o", reserve=24 * GIB)
        peak, floor = shown(orders)
        before = statistics.median(orders.steps(1.5))
        for turn in range(3):
            shrink_ms = orders.given_back(floor + 2 * GIB)
            orders.until(lambda said: said.get("type") == "steps")  # it is said as the cache has just been emptied
            there = used(orders)
            steps = orders.steps(4.0)  # none: each takes longer
            on_host = statistics.median(steps) if steps else None
            charged = charged_for(job)
            grow_ms = orders.obeyed(device=None)
            after = statistics.median(orders.steps(1.5))
            back = used(orders)
            yield {
                "turn": turn + 1,
                "peak_mib": peak // MIB,
                "shrink_ms": shrink_ms,
                "device_mib": there[0] // MIB,
                "host_mib": there[1] // MIB,
                "grow_ms": grow_ms,
                "back_device_mib": back[0] // MIB,
                "back_host_mib": back[1] // MIB,
                "step_ms": [None if one is None else round(1e3 * one, 2) for one in (before, on_host, after)],
                "process_mib": charged,
                "context_mib": gpu.context_mib(job.process.pid, memory_of_last(orders)),
            }
    node.end()


def price_of_host(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """3: the mini-batch with a part of its peak in host memory, relative to none."""
    for model in ("gpt", "resnet50", "slices"):
        with Boss(node.socket) as orders:
            node.start(model, "--seconds", 120, pod="o", reserve=24 * GIB)
            peak, _ = shown(orders)
            before = statistics.median(orders.steps(1.5))
            for part in (0.05, 0.10, 0.25, 0.50):
                orders.obeyed(device=int(peak * (1 - part)))
                orders.listen(1.0)
                steps = orders.steps(3.0)  # none: each takes longer
                device, host = used(orders)
                yield {
                    "model": model,
                    "asked": part,
                    "host_share": round(host / max(1, device + host), 3),
                    "slower": round(statistics.median(steps) / before, 2) if steps else None,
                }
        node.end()


def shown(orders: Boss) -> tuple[int, int]:
    """Bytes at the peak, and what stays between mini-batches, of a job that has just started."""
    orders.until(lambda said: said.get("type") == "steps" and said.get("count", 0) >= 5, 60)
    said = orders.until(lambda said: said.get("type") == "steps")
    return memory_of(said)[0], sum(int(one["floor"]) for one in said["gpus"])


def used(orders: Boss) -> tuple[int, int]:
    """Bytes on the device and on the host, as told next."""
    return memory_of(orders.until(lambda said: said.get("type") == "steps"))


def memory_of_last(orders: Boss) -> int:
    last: Message = next(said for said in reversed(orders.heard) if said.get("gpus"))
    return memory_of(last)[0]


def charged_for(job: Job) -> dict[str, int]:
    """MiB of the process, by the kernel: pinned memory counts as shared or anonymous memory, by driver."""
    lines = Path(f"/proc/{job.process.pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) >> 10 for line in lines if line.startswith(("VmRSS", "Rss"))}
    free = Path("/proc/meminfo").read_text()
    return found | {"MemAvailable": int(free.split("MemAvailable:")[1].split()[0]) >> 10}
