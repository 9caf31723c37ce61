"""Limits under training: real torch, real allocator, make-believe GPUs. Memory is exact; no speed is judged."""

from __future__ import annotations

import random

from tests.framework.boss import Boss, Message, device_mib, host_mib
from tests.framework.shared_node import SharedNode
from tests.lengths import LONG

MIB = 1 << 20
NONSENSE = (
    b"\xff",
    b"[]",
    b"{}",
    b'{"v":1,"type":"order","id":1,"share":-1}',
    b'{"v":2,"type":"order"}',
    b'{"v":1,"type":"order","id":1,"share":NaN}' + b" " * 60000,
)
"""Four of them cannot be read; the others are a newer version's."""


def trains(message: Message) -> bool:
    return bool(message["type"] == "steps" and message["count"] > 2)


def test_a_limit_moves_memory_to_the_host_and_back(node: SharedNode) -> None:
    """The table of the design: 486 MiB at full speed, 242 + 240 under a limit of 250, and all of it back."""
    with Boss(node.socket) as boss:
        job = node.start("memory.py", 600, pod="o", CODA_HOST_RESERVE=str(1024 * MIB))
        hello = boss.until(lambda said: said["type"] == "hello")
        assert hello["control"] == "full"
        assert hello["devices"][0] == "GPU-c0da0000-0000-0000-0000-000000000000"
        full = boss.until(trains)
        assert 478 <= device_mib(full) <= 486
        assert host_mib(full) == 0

        for packet in NONSENSE:
            boss.send_raw(packet)
        number = boss.order(device=250 * MIB)
        done = boss.until(lambda said: said["type"] == "done" and said["id"] == number)
        assert device_mib(done) <= 250
        before = max(said.get("count", 0) for said in boss.heard)
        limited = boss.until(lambda said: said["type"] == "steps" and said["count"] > before + 3)
        assert 236 <= device_mib(limited) <= 250
        assert 230 <= host_mib(limited) <= 250

        number = boss.order(device=None)
        boss.until(lambda said: said["type"] == "done" and said["id"] == number)
        after = max(said.get("count", 0) for said in boss.heard)
        lifted = boss.until(lambda said: said["type"] == "steps" and said["count"] > after + 3)
        assert 478 <= device_mib(lifted) <= 486
        assert host_mib(lifted) == 0

        boss.order(device=50 * MIB, host=0)  # and nothing behind it
        _, errors = job.process.communicate(timeout=60)
        assert job.process.returncode == 1
        assert "OutOfMemoryError" in errors
        said = [line for line in errors.splitlines() if line.startswith("coda: ")]
        assert [line.startswith("coda: an order is not understood: ") for line in said] == [True] * 4


def test_a_thousand_random_orders_change_no_loss(node: SharedNode) -> None:
    """Weights, gradients, activations and the optimizer's state lie on the GPU, and are used by the CPU."""
    steps = 200 if LONG else 12
    alone = node.start("stash.py", steps).result()
    rng, sent, orders = random.Random(7), 0, 1000
    with Boss(node.socket) as boss:
        job = node.start("stash.py", steps, pod="o", CODA_HOST_RESERVE=str(1024 * MIB))
        boss.until(lambda said: said["type"] == "hello")
        while job.process.poll() is None:
            boss.hear(0.002)
            if boss.connections and sent < orders:
                sent += 1
                share = rng.choice([1000, 1000, 1000, 500, 0]) if sent < orders else 1000
                sizes = {"device": rng.choice([None, 0, 4 * MIB, 16 * MIB]), "host": rng.choice([512, 1024]) * MIB}
                boss.order(share=share, hold_s=0 if share else 0.05, **sizes)
        assert job.result() == alone
    assert sent == orders if LONG else sent > 100


def test_a_job_with_another_allocator_stays_under_control(node: SharedNode) -> None:
    """Real torch refuses to count for it: that was the end of all control, at full speed."""
    with Boss(node.socket) as boss:
        job = node.start("other_allocator.py", 10, 4, 0, pod="o", CODA_SHARE="50")
        assert boss.until(trains)["control"] == "fraction"
        boss.order(share=300, device=250 * MIB, hold_s=60)
        before = max(said.get("count", 0) for said in boss.heard)
        boss.until(lambda said: said["type"] == "steps" and said["count"] > before + 3)
        _, errors = job.process.communicate(timeout=60)
    assert job.process.returncode == 0, errors
    assert "control of this process ends" not in errors
