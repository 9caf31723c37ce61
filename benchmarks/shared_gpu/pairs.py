"""Experiments 6 to 9: two jobs on the GPU, packed and coordinated; what a profile says of a pair; an arrival."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from coda.sharing.config import SharingConfig
from coda.sharing.pairing import NOTHING_MEASURED, GpuProfile, expected_speed
from shared_gpu.gpu import Gpu
from shared_gpu.node import GIB, Job, Node, Ran, coordinating

CONNECTING_S, SETTLING_S, COUNTED_S = 3.0, 35.0, 8.0
CARD = 48 * GIB
SIX = {"resnet50": 0, "vgg": 40, "gpt": 0, "lstm": 0, "slices": 60, "tiny": 2}
"""Models, and how many milliseconds the CPU works before each mini-batch."""


def two_jobs(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """6: a guaranteed transformer that is busy 90, 50 and 20 % of the time, beside ResNet-50."""
    alone = node.start("gpt", "--seconds", 4).result().settled_s
    for duty in (0.9, 0.5, 0.2):
        idle = ("--idle", round(1e3 * alone * (1 / duty - 1), 1))
        yield {"pair": "gpt + resnet50", "duty": duty} | both(node, gpu, ("gpt", *idle), ("resnet50",))


def bursts(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """7: a guaranteed job of many short kernels (AntMan's ESPnet became five times as slow, unpaced)."""
    yield {"pair": "lstm + resnet50"} | both(node, gpu, ("lstm",), ("resnet50",))


def both(node: Node, gpu: Gpu, first: tuple[object, ...], second: tuple[object, ...]) -> dict[str, Any]:
    """Each alone, both packed without control, and with the agent's coordinator once it has settled."""
    together = ("g", "o")
    with coordinating(node.socket, gpu.uuid, gpu.memory_bytes, None, together) as coordinator:
        jobs = [node.start(*words, "--seconds", 200, pod=pod) for words, pod in ((first, "g"), (second, "o"))]
        for job in jobs:
            job.wait_until_running()
        time.sleep(CONNECTING_S)
        spans = [during(3.0, paused=jobs[1]), during(3.0, paused=jobs[0]), during(4.0)]
        coordinator.gpu = replace(coordinator.gpu, guaranteed="g", opportunistic=("o",))
        time.sleep(SETTLING_S)
        spans.append(during(COUNTED_S))
        coordinator.gpu = replace(coordinator.gpu, guaranteed=None, opportunistic=together)
        ran = [stopped(job) for job in jobs]
    first_alone_s, second_alone = ran[0].step_s(*spans[0]), ran[1].rate(*spans[1])
    shares = coordinator.shares(*spans[3])
    return {
        "alone_ms": round(1e3 * first_alone_s, 2),
        "alone_per_s": round(second_alone, 2),
        "packed_slower": round(ran[0].step_s(*spans[2]) / first_alone_s, 3),
        "packed_other": round(ran[1].rate(*spans[2]) / second_alone, 3),
        "coordinated_slower": round(ran[0].step_s(*spans[3]) / first_alone_s, 3),
        "coordinated_other": round(ran[1].rate(*spans[3]) / second_alone, 3),
        "shares": [min(shares), max(shares)],
        "phases": coordinator.phases(),
    }


def during(seconds: float, paused: Job | None = None) -> tuple[float, float]:
    """Let time pass, with one of the jobs stopped; its last kernels end first. Returns from when to when."""
    if paused is not None:
        paused.process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
    began_s = time.monotonic()
    time.sleep(seconds)
    ended_s = time.monotonic()
    if paused is not None:
        paused.process.send_signal(signal.SIGCONT)
        time.sleep(1.0)
    return began_s, ended_s


def packed_speeds(node: Node, first: tuple[object, ...], second: tuple[object, ...], seconds: float) -> list[Ran]:
    """Both at once, with nothing of Coda. They end together, so only their second half counts."""
    jobs = [node.start(*words, "--seconds", seconds) for words in (first, second)]
    return [job.result() for job in jobs]


def stopped(job: Job) -> Ran:
    """What it has done so far: it ends at its next mini-batch."""
    job.process.terminate()
    return job.result(30)


def profiles(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """8: the duty by NVML against torch's profiler, for six models; then twelve pairs, predicted and measured."""
    known: dict[str, GpuProfile] = {}
    for model, idle in SIX.items():
        job = node.start(model, "--seconds", 6, "--idle", idle, "--union")
        job.wait_until_running()
        busy = gpu.busy(3.0)
        ran = job.result()
        known[model] = GpuProfile(
            key=model, duty=max(0.01, min(1.0, busy)), step_s=ran.settled_s, peak_bytes=ran.peak, floor_bytes=0
        )
        yield {
            "model": model,
            "nvml": round(100 * busy, 1),
            "kernels": round(100 * (ran.union or 0), 1),
            "step_ms": round(1e3 * ran.settled_s, 2),
            "peak_mib": ran.peak >> 20,
        }
    names = list(SIX)
    chosen = [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]][:12]
    for one, other in chosen:
        speeds = packed_speeds(node, (one, "--idle", SIX[one]), (other, "--idle", SIX[other]), 5.0)
        yield {
            "pair": f"{one} + {other}",
            "measured": [
                round(known[name].step_s / ran.settled_s, 2) for name, ran in zip((one, other), speeds, strict=True)
            ],
            "predicted": [
                round(expected_speed(known[name], known[beside], NOTHING_MEASURED, SharingConfig()), 2)
                for name, beside in ((one, other), (other, one))
            ],
        }


def arrivals(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """9: a guaranteed job of 17 GiB starts on a card of 48 GiB that an opportunistic one has filled.

    Larger cards are made as small by a process that holds the rest."""
    alone = [round(first_step_s(node.start("slices", "--steps", 10).result()), 2) for _ in range(2)]
    held = max(0, gpu.memory_bytes - CARD) // GIB
    if held:
        node.start("tiny", "--hold", held, "--idle", 1000).wait_until_running()
    with coordinating(node.socket, gpu.uuid, CARD, None, ["o"]) as coordinator:
        filling = node.start("fill", "--seconds", 500, pod="o", reserve=56 * GIB)
        filling.wait_until_running()
        time.sleep(CONNECTING_S)
        for turn in range(3):
            coordinator.gpu = replace(coordinator.gpu, guaranteed=f"g{turn}")
            job = node.start("slices", "--steps", 40, pod=f"g{turn}", reserve=24 * GIB)
            try:
                ran = job.result(60)
                steps = [round(1e3 * ran.step_s(at, at + 1), 1) for at in (ran.began_s, ran.ended_s[-1] - 1)]
                found: dict[str, Any] = {"first_step_s": round(first_step_s(ran), 2), "first_and_last_ms": steps}
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                found = {"failed": str(error)[-300:]}
            coordinator.gpu = replace(coordinator.gpu, guaranteed=None)
            time.sleep(4)
            yield {"turn": turn + 1, "alone_s": alone, "other_is_alive": filling.process.poll() is None} | found
        last = stopped(filling)
    yield {"filled_mib": last.peak >> 20, "phases": coordinator.phases()}


def first_step_s(ran: Ran) -> float:
    """From the start of the script to the end of its first mini-batch."""
    return ran.ended_s[0] - ran.started_s
