"""Guests lose their work only where that is of use to the owner, and not for one pod again and again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from coda.sharing.config import GIB
from coda_agent.gpus import GpuReading, Health
from coda_agent.gpus.allocations import Grant
from coda_agent.gpus.devices import Gpu, GpuProcess, Memory
from coda_agent.gpus.processes import GpuUser
from coda_agent.sharing import SharedGpu, shared_gpus_from
from coda_agent.sharing.messages import Message
from tests.agent.sharing.test_coordinator import GPU, Board, claim, pod, shared, steps

SLOT = "0000:1a:00.0"
MINUTES = 60
GUEST = claim(2, reserve=0)


def asks(gib: float) -> Message:
    return Message(kind="refused", pci_bus_id=SLOT, refused_bytes=int(gib * GIB))


def seen(used_gib: float | None = None, **gib_by_pod: float) -> SharedGpu:
    """A card of 80 GiB, whole of "g", a seat of "o", as the driver sees it."""
    return replace(
        shared(opportunistic=["o"]),
        pci_bus_id=SLOT,
        seen_bytes={uid: int(gib * GIB) for uid, gib in gib_by_pod.items()},
        used_bytes=None if used_gib is None else int(used_gib * GIB),
    )


def board_of(gpu: SharedGpu, *processes: str) -> Board:
    board = Board(gpu)
    for process in (*processes, "library"):
        board.coordinator.join(process, "g")
    board.coordinator.join("o1", "o")
    return board


def told(board: Board) -> tuple[tuple[str, ...], bool | None]:
    """Who is to be stopped, and what the owner is told; None: nothing yet."""
    return board.coordinator.to_move.get(GPU, ()), board.coordinator.answers.get("library")


@pytest.mark.parametrize(
    ("gpu", "owner", "gib"),
    [
        pytest.param(seen(), {"g1": 40, "g2": 36}, 20, id="two processes, by their own words"),
        pytest.param(seen(g=79, o=2), {"g1": 78}, 1.9, id="one process and its context, as the driver sees it"),
        pytest.param(seen(g=79, o=2), {}, 1.9, id="a process that nobody hears"),
    ],
)
def test_nobody_leaves_for_what_the_card_could_never_hold(gpu: SharedGpu, owner: Mapping[str, int], gib: float) -> None:
    board = board_of(gpu, *owner)
    said = {process: steps(9, claim(size)) for process, size in owner.items()} | {"o1": steps(90, GUEST)}
    board.seconds(70, **said)
    board.seconds(1, library=asks(gib), **said)
    assert told(board) == ((), None)  # it gives its own cache back in this moment, perhaps
    board.seconds(1, library=asks(gib), **said)
    assert told(board) == ((), False)
    board.seconds(20, library=asks(gib), **said)
    assert told(board) == ((), False)


def test_the_context_counts_where_only_the_job_tells_what_it_has() -> None:
    board = board_of(seen(), "g1")
    board.coordinator._context_bytes = GIB
    said = {"g1": steps(9, claim(78)), "o1": steps(90, GUEST)}
    board.seconds(2, library=asks(1.9), **said)
    assert told(board) == ((), False)


def test_a_cache_that_the_owner_has_just_given_back_does_not_count() -> None:
    """It says nothing while it waits: what it said before is old."""
    board = board_of(seen(), "g1")
    guest = {"o1": steps(90, GUEST)}
    board.seconds(70, g1=steps(9, claim(70, floor=30)), **guest)
    board.seconds(2, library=asks(45), **guest)
    assert told(board) == (("o",), True)


def test_what_the_driver_saw_before_that_does_not_count_either() -> None:
    board = board_of(seen(g=70, o=2), "g1")
    guest = {"o1": steps(90, claim(40, reserve=0))}
    board.seconds(1, library=asks(45), **guest)
    assert told(board) == ((), None)
    board.gpus = (seen(g=30, o=40),)
    board.seconds(1, **guest)
    assert told(board) == (("o",), True)


def test_of_two_that_wait_the_one_that_may_get_it_is_waited_for() -> None:
    board = board_of(seen(g=60, o=19), "g1")
    board.coordinator.join("other", "g")
    board.seconds(2, library=asks(15), other=asks(30), o1=steps(90, claim(19, reserve=0)))
    assert told(board) == (("o",), True)
    assert board.coordinator.answers["other"] is False


@pytest.mark.parametrize("gpu", [seen(g=1, o=2), seen(used_gib=3)], ids=["by pod", "of the card"])
def test_nobody_leaves_while_enough_is_free_and_the_owner_tries_again_for_a_moment(gpu: SharedGpu) -> None:
    board = board_of(gpu, "g1")
    board.seconds(4, library=asks(70), o1=steps(90, GUEST))
    assert told(board) == ((), True)
    board.seconds(5, library=asks(70), o1=steps(90, GUEST))
    assert told(board) == ((), False)
    board.gpus = (replace(gpu, used_bytes=70 * GIB),)  # somebody has taken it meanwhile
    board.seconds(1, library=asks(70), o1=steps(90, GUEST))
    assert told(board) == (("o",), True)


def test_what_a_process_of_no_pod_has_is_not_free() -> None:
    board = board_of(seen(used_gib=60, g=1, o=2), "g1")
    board.seconds(1, library=asks(30), o1=steps(90, GUEST))
    assert told(board) == (("o",), True)


@pytest.mark.parametrize(
    ("memory", "held", "free"),
    [
        pytest.param(Memory(total_bytes=80, used_bytes=70), 50, 10, id="of the card: others and the driver have some"),
        pytest.param(None, 50, 30, id="by process"),
        pytest.param(Memory(total_bytes=80, used_bytes=70), None, 10, id="only of the card"),
        pytest.param(None, None, None, id="not known"),
    ],
)
def test_what_is_free_is_what_the_driver_says(memory: Memory | None, held: int | None, free: int | None) -> None:
    device = Gpu(uuid=GPU, index=0, minor=0, name="", pci_bus_id=SLOT, memory_bytes=80)
    processes = (GpuProcess(pid=7, memory_bytes=held),)
    reading = GpuReading(gpu=device, health=Health.READY, memory=memory, processes=processes)
    held_whole = Grant(namespace="default", pod="a", container="main", device_ids=(("nvidia.com/gpu", GPU),))
    (found,) = shared_gpus_from([reading], [held_whole], [pod("a")], {GPU: [GpuUser(pid=7, pod_uid="uid-a")]})
    assert found.free_bytes == free


def awaited_s(board: Board, seconds: int, renewed_s: int) -> list[int]:
    """The seconds in which a guest was named, for a pod that asks over a new connection each `renewed_s`."""
    named = []
    for second in range(seconds):
        if second % renewed_s == 0:
            board.coordinator.leave(f"x{second - renewed_s}")
            board.coordinator.join(f"x{second}", "g")
        board.seconds(1, **{f"x{second - second % renewed_s}": asks(70), "o1": steps(90, claim(40, reserve=0))})
        if board.coordinator.awaited:
            named.append(second)
    return named


def test_a_pod_that_asks_again_and_again_is_believed_no_longer_than_one_that_asks_once() -> None:
    named = awaited_s(board_of(seen(g=1, o=40)), 60 * MINUTES, renewed_s=100)
    assert 5 * 149 <= len(named) <= 5 * 150
    began_s = [second for second in named if second - 1 not in named]
    assert all(later - before >= 749 for before, later in itertools.pairwise(began_s))


def test_waits_that_are_far_apart_are_each_believed() -> None:
    board = board_of(seen(g=1, o=40))
    for wait in range(6):
        board.coordinator.join(f"w{wait}", "g")
        board.seconds(100, **{f"w{wait}": asks(70), "o1": steps(90, claim(40, reserve=0))})
        assert board.coordinator.awaited == {GPU}
        board.coordinator.leave(f"w{wait}")
        board.seconds(10 * MINUTES + 1)
    assert len(board.coordinator._waits._waits) == 0
