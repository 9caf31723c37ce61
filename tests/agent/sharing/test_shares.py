"""A pod has one share of a GPU, however many processes it has there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.sharing.config import GIB
from coda.sharing.memory_limits import MemoryControl
from coda_agent.sharing.members import IDLE_S, Process
from coda_agent.sharing.messages import Message
from tests.agent.sharing.test_coordinator import CONFIG, Board, claim, shared, steps

FLOOR = CONFIG.floor_share


@pytest.fixture
def board() -> Board:
    """A guaranteed job that is still arriving, so that its neighbours have the floor."""
    board = Board()
    board.coordinator.join("g1", "g")
    return board


def quiet(device: int) -> Message:
    return Message(kind="beat", gpus=(claim(device),))


def joined(board: Board, count: int) -> list[str]:
    peers = [f"o{number}" for number in range(count)]
    for peer in peers:
        board.coordinator.join(peer, "o")
    return peers


def shares(board: Board, seconds: int, **said: Message) -> dict[str, int]:
    orders = board.seconds(seconds, **{"g1": quiet(20)} | said)
    return {peer: order.share for peer, order in orders.items() if peer != "g1"}


def test_a_share_is_divided_among_the_processes_of_a_pod(board: Board) -> None:
    """Eight had eight shares: 40 % instead of 5 % of the GPU beside a job that has it whole."""
    peers = joined(board, 8)
    assert shares(board, 1, **{peer: steps(9, claim(1)) for peer in peers}) == dict.fromkeys(peers, FLOOR // 8)
    for peer in peers[1:]:
        board.coordinator.leave(peer)
    assert shares(board, 1, o0=steps(10, claim(1))) == {"o0": FLOOR}


def test_each_process_of_many_still_moves(board: Board) -> None:
    peers, small = joined(board, 100), replace(claim(1), device_bytes=GIB // 8, floor_bytes=GIB // 8)
    assert set(shares(board, 1, **{peer: steps(9, small) for peer in peers}).values()) == {1}


def test_a_process_that_has_said_nothing_of_its_memory_counts(board: Board) -> None:
    joined(board, 2)
    assert shares(board, 1, o0=steps(9, claim(1)), o1=Message(kind="hello")) == {"o0": FLOOR // 2, "o1": FLOOR // 2}


def test_a_process_on_another_gpu_takes_nothing_here(board: Board) -> None:
    joined(board, 2)
    board.gpus = (shared(), shared(None, (), "GPU-2"))
    elsewhere = replace(claim(1), gpu="GPU-2")
    assert shares(board, 1, o0=steps(9, claim(1)), o1=steps(9, elsewhere))["o0"] == FLOOR


def test_an_idle_process_takes_nothing_after_a_minute_until_it_works(board: Board) -> None:
    """A process that only evaluates has memory between two epochs, and runs no kernel."""
    joined(board, 2)
    idle = Message(kind="beat", count=0, gpus=(replace(claim(1), busy_ns=7),))
    first = shares(board, 5, o0=steps(9, claim(1)), o1=idle)
    assert first == {"o0": FLOOR // 2, "o1": FLOOR // 2}
    for second in range(int(IDLE_S)):
        later = shares(board, 1, o0=steps(10 + second, claim(1)), o1=idle)
    assert later == {"o0": FLOOR, "o1": FLOOR // 2}
    evaluates = replace(idle, gpus=(replace(claim(1), busy_ns=8),))
    assert shares(board, 1, o0=steps(99, claim(1)), o1=evaluates) == {"o0": FLOOR // 2, "o1": FLOOR // 2}


def test_a_process_that_nobody_controls_takes_its_part_for_ever() -> None:
    """It says nothing any more, and may run at the floor."""
    process = Process()
    process.take(Message(kind="hello", control=MemoryControl.NONE), 0.0)
    assert process.shares("GPU-1", 100 * IDLE_S)


def test_who_stood_still_is_not_idle(board: Board) -> None:
    """All of them go on at once; their kernels could not run meanwhile."""
    peers = joined(board, 2)
    said = {peer: steps(9, claim(30, reserve=0)) for peer in peers}
    assert set(shares(board, 2 * int(IDLE_S), g1=quiet(40), **said).values()) == {0}
    while (later := shares(board, 1, g1=quiet(5), **said))["o0"] == 0:
        assert board.now_s < 1000
    assert later == {"o0": FLOOR // 2, "o1": FLOOR // 2}


def test_alone_each_process_runs_free(board: Board) -> None:
    board.gpus = (shared(None),)
    joined(board, 2)
    assert shares(board, 1, o0=steps(9, claim(1)), o1=steps(9, claim(1))) == {"o0": 1000, "o1": 1000}
