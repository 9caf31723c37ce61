"""A job that has its GPU whole, on which a guest holds memory that it needs."""

from __future__ import annotations

import time

from coda.sharing.config import GIB
from tests.framework.shared_node import Job, SharedNode, coordinating, shared_gpu

GUEST_MIB, OWNER_MIB = 500, 700
"""Of a card of 1 GiB."""


def said_that_it_trains(job: Job) -> None:
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "trains\n"


def test_an_owner_waits_until_a_guest_without_host_memory_has_left(node: SharedNode) -> None:
    """The agent names the guest at once; the test plays the operator, which stops it."""
    gpu = shared_gpu(GIB, guaranteed=None, opportunistic=["o"])
    with coordinating(node.socket, [gpu]) as coordinator:
        guest = node.start("grow.py", GUEST_MIB, GUEST_MIB, 0, 600, pod="o", CODA_SHARE="50")
        said_that_it_trains(guest)
        coordinator.gpus = (shared_gpu(GIB, guaranteed="g", opportunistic=["o"]),)
        owner = node.start("grow.py", OWNER_MIB, OWNER_MIB, 0, 1, pod="g")
        end_s = time.monotonic() + 100
        while coordinator.shared.to_move != {gpu.uuid: ("o",)}:
            assert time.monotonic() < end_s, "nobody named the guest"
            assert owner.process.poll() is None
            time.sleep(0.1)
        assert coordinator.shared.awaited == {gpu.uuid}
        guest.process.terminate()  # it hears that, though it is paced: it ends by itself
        assert owner.result()["longest_s"] > 0.2


def test_alone_on_its_gpu_it_fails_at_once(node: SharedNode) -> None:
    gpu = shared_gpu(GIB, guaranteed="g", opportunistic=[])
    with coordinating(node.socket, [gpu]):
        first = node.start("grow.py", GUEST_MIB, GUEST_MIB, 0, 600, pod="g")
        said_that_it_trains(first)
        second = node.start("grow.py", OWNER_MIB, OWNER_MIB, 0, 1, pod="g")
        _, errors = second.process.communicate(timeout=120)
        assert "OutOfMemoryError" in errors
        assert "waiting" not in errors
        assert first.process.poll() is None
