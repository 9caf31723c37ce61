"""A process of a guaranteed job was refused memory: who is waited for, and who is told to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.errors import InvalidInput
from coda.sharing.config import GIB
from coda.sharing.memory_waits import REFUSAL_S
from coda_agent.sharing.messages import Message, message_from
from tests.agent.sharing.test_coordinator import GPU, Board, claim, shared, steps

SLOT, OTHER = "0000:1a:00.0", "0000:8b:00.0"
REFUSED = Message(kind="refused", pci_bus_id=SLOT, refused_bytes=35 * GIB)


def board_with(*seated: str) -> Board:
    """The pod "g" has two GPUs whole, "o" or nobody has a seat on the first, "p" on the second one."""
    first = replace(shared(opportunistic=seated), pci_bus_id=SLOT)
    board = Board(first, replace(shared(opportunistic=["p"], gpu="GPU-2"), pci_bus_id=OTHER))
    for peer, of in (("g1", "g"), ("library", "g"), ("o1", "o")):
        board.coordinator.join(peer, of)
    return board


def test_guests_of_the_gpu_that_it_names_are_waited_for_as_long_as_the_process_asks() -> None:
    board = board_with("o")
    said = {"g1": steps(9, claim(4)), "o1": steps(90, claim(60, reserve=0))}
    board.seconds(2, **said)
    assert (board.coordinator.to_move, board.coordinator.awaited, board.coordinator.answers) == ({}, frozenset(), {})
    board.seconds(1, library=REFUSED, **said)
    assert board.coordinator.to_move == {GPU: ("o",)}
    assert board.coordinator.awaited == {GPU}
    assert board.coordinator.answers == {"library": True}
    assert any("waits for memory" in sentence for sentence in board.coordinator.problems)
    board.coordinator.leave("library")
    board.seconds(1, **said)
    assert (board.coordinator.to_move, board.coordinator.awaited, board.coordinator.answers) == ({}, frozenset(), {})


def test_nobody_is_waited_for_longer_than_a_library_waits() -> None:
    """Its connection may stay open: the process stands still, or lies, and says it again and again."""
    board = board_with("o")
    said = {"g1": steps(9, claim(4)), "o1": steps(90, claim(60, reserve=0))}
    board.seconds(2, library=REFUSED, **said)
    assert board.coordinator.awaited == {GPU}
    board.seconds(int(REFUSAL_S) - 3, library=REFUSED, **said)
    assert board.coordinator.answers == {"library": True}
    board.seconds(3, library=REFUSED, **said)
    assert (board.coordinator.to_move, board.coordinator.awaited) == ({}, frozenset())
    assert board.coordinator.answers == {"library": False}


def test_whoever_is_alone_on_its_gpu_need_not_wait() -> None:
    board = board_with()
    board.seconds(1, g1=steps(9, claim(4)), library=REFUSED)
    assert board.coordinator.answers == {"library": False}
    assert board.coordinator.to_move == {}


def test_nobody_leaves_for_a_guest_that_was_refused_memory() -> None:
    board = board_with("o", "q")
    board.coordinator.join("q1", "q")
    board.seconds(1, o1=REFUSED, q1=steps(90, claim(60, reserve=0)))
    assert board.coordinator.answers == {"o1": False}
    assert board.coordinator.to_move == {}


def test_where_the_gpu_is_not_known_all_of_the_job_count() -> None:
    board = board_with("o")
    board.seconds(1, o1=steps(90, claim(60, reserve=0)), library=Message(kind="refused", refused_bytes=GIB))
    assert board.coordinator.awaited == {GPU, "GPU-2"}


@pytest.mark.parametrize("text", ['"pci":"0000:1A:00.0","bytes":37580963840', '"bytes":0', ""])
def test_a_refusal_is_read(text: str) -> None:
    message = message_from(("{" + ",".join(filter(None, ['"v":1,"type":"refused"', text])) + "}").encode())
    assert message == (REFUSED if "1A" in text else Message(kind="refused"))


@pytest.mark.parametrize("text", ['"pci":5', '"bytes":-1', '"bytes":"many"', f'"pci":"{"0" * 99}"'])
def test_a_refusal_without_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        message_from(("{" + f'"v":1,"type":"refused",{text}' + "}").encode())
